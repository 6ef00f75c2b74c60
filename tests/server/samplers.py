"""Device samplers that run on the CPU, and the rows of logits that they copy to the host."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import onnx

from server.constraint import Floats
from server.engine.decoding import sampling
from server.engine.gpu.device_sampler import DeviceSampler, SampleRequest
from server.engine.gpu.sampler_inputs import GATHERED, ROWS, LogitsSpec
from server.engine.requests.job import GenerationJob
from server.engine.requests.sequence import DecodingSequence
from server.engine.token_selector import greedy
from server.runtime.contract import Array, BoundGraph, Graph, Tensor
from server.runtime.ort.backend import OrtBackend

# The backend caches the graphs that it has loaded.
load_model = OrtBackend("cpu", 1).load_model


@cache
def device_sampler(spec: LogitsSpec) -> DeviceSampler:
    return DeviceSampler(load_model, spec)


def sample_request(
    index: int, job: GenerationJob, tokens: Sequence[int], uniform: float
) -> SampleRequest:
    """A request for a row that has generated ``tokens``."""
    row = DecodingSequence.first_of(index, replace(job, max_new_tokens=len(tokens) + 1))
    row.tokens += tokens
    return SampleRequest(index, row, uniform)


def host_token(logits: Floats, request: SampleRequest) -> int | None:
    """The token that the host samples from ``logits [vocabulary]``; None if it samples none."""
    if greedy(logits[None]) == [None]:
        return None
    adjusted = logits.copy()
    request.sequence.process_logits(adjusted)
    if adjusted.max() == -np.inf:
        return None
    options = request.sequence.job.sampling
    if options.is_greedy:
        return int(adjusted.argmax())
    return sampling.sample(adjusted, options, request.uniform)


@dataclass
class Copies:
    """Loads graphs, and records which rows of logits they copy to the host."""

    backend: OrtBackend
    rows: list[int] = field(default_factory=list)
    num_runs: int = 0

    def load(self, model: onnx.ModelProto) -> Graph:
        graph = self.backend.load_model(model)
        is_gather = model.graph.output[0].name == GATHERED
        return _CountedGraph(graph, self, is_gather)


@dataclass
class _CountedGraph:
    real: Graph
    copies: Copies
    is_gather: bool

    def bind(
        self, states: Mapping[tuple[str, str], Tensor], outputs: Collection[str] | None = None
    ) -> "_CountedBoundGraph":
        assert outputs is None
        return _CountedBoundGraph(self.real.bind(states), self)


@dataclass
class _CountedBoundGraph:
    real: BoundGraph
    graph: _CountedGraph

    def run(self, inputs: Mapping[str, Array | Tensor]) -> dict[str, Array]:
        if self.graph.is_gather:
            rows = inputs[ROWS]
            assert isinstance(rows, np.ndarray)
            self.graph.copies.rows += rows.tolist()
        else:
            self.graph.copies.num_runs += 1
        return self.real.run(inputs)

    def run_on_device(self, inputs: Mapping[str, Array | Tensor]) -> dict[str, Tensor]:
        return self.real.run_on_device(inputs)

    def run_into(
        self,
        inputs: Mapping[str, Array | Tensor],
        outputs: Mapping[str, Tensor],
        *,
        repeats: bool = False,
    ) -> bool:
        return self.real.run_into(inputs, outputs, repeats=repeats)
