"""Device samplers on the CPU, and a recorder of the logits rows they copy to the host."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import onnx

from server.constraint import Floats
from server.engine.decoding import sampling
from server.engine.decoding.logits import best_of
from server.engine.gpu.device_sampler import DeviceSampler, SampleRequest
from server.engine.gpu.sampler_inputs import GATHERED, ROWS, LogitsSpec
from server.engine.requests.job import GenerationJob
from server.engine.requests.sequence import DecodingSequence
from server.runtime.contract import BoundGraph, Graph, KernelNodes, RepeatedRun
from server.runtime.memory import Array, Tensor
from server.runtime.ort.backend import OrtBackend

# The backend caches loaded graphs.
load_model = OrtBackend("cpu", 1).load_model


@cache
def device_sampler(spec: LogitsSpec) -> DeviceSampler:
    return DeviceSampler(load_model, spec)


def sample_request(
    index: int, job: GenerationJob, tokens: Sequence[int], uniform: float
) -> SampleRequest:
    """A sample request for a sequence that has generated ``tokens``."""
    sequence = DecodingSequence.first_of(index, replace(job, max_new_tokens=len(tokens) + 1))
    sequence.tokens += tokens
    return SampleRequest(index, sequence, uniform)


def host_token(logits: Floats, request: SampleRequest) -> int | None:
    """The token that the host samples from ``logits [vocabulary]``; None if all are invalid."""
    if best_of(logits[None]) == [None]:
        return None
    processed = logits.copy()
    request.sequence.process_logits(processed)
    if processed.max() == -np.inf:
        return None
    options = request.sequence.job.sampling
    if options.is_greedy:
        return int(processed.argmax())
    return sampling.sample(processed, options, request.uniform)


@dataclass
class GraphRecorder:
    """Loads graphs; records which logits rows they copy to the host and how often they run."""

    backend: OrtBackend
    rows: list[int] = field(default_factory=list)
    num_runs: int = 0

    def load(self, model: onnx.ModelProto) -> Graph:
        graph = self.backend.load_model(model)
        is_gather = model.graph.output[0].name == GATHERED
        return _RecordedGraph(graph, self, is_gather)


@dataclass
class _RecordedGraph:
    real: Graph
    copies: GraphRecorder
    is_gather: bool
    kernel_nodes = KernelNodes()
    outputs = ()

    def bind(
        self, states: Mapping[tuple[str, str], Tensor], outputs: Collection[str] | None = None
    ) -> "_RecordedBoundGraph":
        return _RecordedBoundGraph(self.real.bind(states, outputs), self)


@dataclass
class _RecordedBoundGraph:
    real: BoundGraph
    graph: _RecordedGraph

    def run(self, inputs: Mapping[str, Array | Tensor]) -> dict[str, Array]:
        if self.graph.is_gather:
            rows = inputs[ROWS]
            assert isinstance(rows, np.ndarray)
            self.graph.copies.rows += rows.tolist()
        else:
            self.graph.copies.num_runs += 1
        return self.real.run(inputs)

    def run_on_device(
        self, inputs: Mapping[str, Array | Tensor], on_host: Collection[str] = ()
    ) -> dict[str, Tensor]:
        return self.real.run_on_device(inputs, on_host)

    def repeat_into(
        self,
        inputs: Mapping[str, Array | Tensor],
        outputs: Mapping[str, Tensor],
        on_host: str | None = None,
        *,
        feeds_back: bool = False,
    ) -> RepeatedRun:
        return self.real.repeat_into(inputs, outputs, on_host, feeds_back=feeds_back)
