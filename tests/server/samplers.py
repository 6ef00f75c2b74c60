"""Choosers over the CPU, and what they copied of logits."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import onnx

from server.engine.decoding import sampling
from server.engine.decoding.logits_processors import Floats
from server.engine.gpu.device_sampler import DeviceSampler, SampleRequest
from server.engine.gpu.sampler_graph import ROWS, Shape
from server.engine.requests.sequence import DecodingSequence as Row
from server.engine.requests.sequence import GenerationJob
from server.runtime.contract import Array, Block, BoundGraph, Graph
from server.runtime.ort.backend import OrtBackend

# It keeps what it has loaded.
load_model = OrtBackend("cpu", 1).load_model


@cache
def chooser(shape: Shape) -> DeviceSampler:
    return DeviceSampler(load_model, shape)


def ask(index: int, job: GenerationJob, tokens: Sequence[int], uniform: float) -> SampleRequest:
    """For a row that has generated ``tokens``."""
    row = Row.first_of(index, replace(job, max_new_tokens=len(tokens) + 1))
    row.tokens += tokens
    return SampleRequest(index, row, uniform)


def on_the_host(logits: Floats, wanted: SampleRequest) -> int | None:
    """The host's token for ``logits [vocabulary]``; None where there is none."""
    if sampling.greedy(logits[None]) == [None]:
        return None
    adjusted = logits.copy()
    wanted.row.adjust(adjusted)
    if adjusted.max() == -np.inf:
        return None
    options = wanted.row.job.sampling
    if options.is_greedy:
        return int(adjusted.argmax())
    return sampling.sample(adjusted, options, wanted.uniform)


@dataclass
class Copies:
    """Loads graphs and notes which rows of logits were copied to the host."""

    backend: OrtBackend
    rows: list[int] = field(default_factory=list)
    num_runs: int = 0

    def load(self, model: onnx.ModelProto) -> Graph:
        graph = self.backend.load_model(model)
        is_take = model.graph.output[0].name == "taken"
        return _CountedGraph(graph, self, is_take)


@dataclass
class _CountedGraph:
    real: Graph
    copies: Copies
    is_take: bool

    def bind(
        self, states: Mapping[tuple[str, str], Block], outputs: Collection[str] | None = None
    ) -> "_CountedBoundGraph":
        assert outputs is None
        return _CountedBoundGraph(self.real.bind(states), self)


@dataclass
class _CountedBoundGraph:
    real: BoundGraph
    graph: _CountedGraph

    def run(self, inputs: Mapping[str, Array | Block]) -> dict[str, Array]:
        if self.graph.is_take:
            rows = inputs[ROWS]
            assert isinstance(rows, np.ndarray)
            self.graph.copies.rows += rows.tolist()
        else:
            self.graph.copies.num_runs += 1
        return self.real.run(inputs)

    def run_kept(self, inputs: Mapping[str, Array | Block]) -> dict[str, Block]:
        return self.real.run_kept(inputs)

    def run_into(
        self,
        inputs: Mapping[str, Array | Block],
        outputs: Mapping[str, Block],
        *,
        repeats: bool = False,
    ) -> bool:
        return self.real.run_into(inputs, outputs, repeats=repeats)
