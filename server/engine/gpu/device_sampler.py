"""Tokens chosen by graphs, next to the logits: for the rows that need no more than a token.

Rows with the same sampling method share a run of :mod:`server.engine.gpu.sampler_graph`.
What a graph leaves undecided, and what needs whole logits, is for the host.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from model.bundle import GraphSpec
from server.engine.decoding.logits import Logits
from server.engine.decoding.logits_processors import EditKind, LogitsEdit
from server.engine.gpu.sampler_graph import (
    EDIT_IDS,
    EDIT_VALUES,
    LOGITS,
    NO_TOP_P,
    PARAMETERS,
    ROWS,
    UNDECIDED,
    SamplingMethod,
    Shape,
    Variant,
    build,
    build_take,
)
from server.engine.requests.sequence import DecodingSequence
from server.runtime.contract import Array, Block, BoundGraph, Graph

log = logging.getLogger(__name__)

# Edits of a row are padded to this, or twice this, and so on: few shapes, few allocations.
_MIN_EDITS = 16
# Where a change's values go in ``edit_values``, and what stands there for no change.
_COLUMNS = {EditKind.ADDED: 0, EditKind.WEAKENED: 1, EditKind.LOWERED: 2, EditKind.FORBIDDEN: 2}
_NO_EDIT = np.array([0, 1, 0], np.float32)


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """A token wanted for ``row``, of the logits at ``index``. ``uniform``: what is drawn with."""

    index: int
    row: DecodingSequence
    uniform: float = 0.0


def shape_of(spec: GraphSpec, suppressed: tuple[int, ...] = ()) -> Shape:
    """Of the logits of a manifest's ``decode`` graph. ``suppressed`` tokens are never generated."""
    logits = spec.output(LOGITS)
    element_type = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(logits.dtype.value))
    return Shape(int(logits.shape[-1]), element_type, suppressed=suppressed)


LoadModel = Callable[[onnx.ModelProto], Graph]


def bind_take(load: LoadModel, shape: Shape) -> BoundGraph:
    """The graph that copies rows of logits to the host."""
    return load(build_take(shape)).bind({})


class DeviceSampler:
    """Asks the graphs for one model on one device. Of one lane's thread.

    Args:
        load: a graph, for the device; each when it is first used.
        shape: of the model's logits.
    """

    def __init__(self, load: LoadModel, shape: Shape) -> None:
        self._load = load
        self._shape = shape
        self._bound: dict[Variant, BoundGraph] = {}

    def way_of(self, row: DecodingSequence) -> SamplingMethod | None:
        """How its next token is chosen; None if that takes whole logits."""
        options = row.job.sampling
        if row.constraint is not None or row.job.logprob_options.top_logprobs is not None:
            return None
        if options.is_greedy:
            return SamplingMethod.GREEDY
        if options.typical_p < 1.0 or options.top_k >= self._shape.candidates:
            return None
        if options.top_k:
            return SamplingMethod.TOP_K
        restricts = options.top_p < 1.0 or options.min_p > 0.0
        return SamplingMethod.NUCLEUS if restricts else SamplingMethod.SPREAD

    def choose(self, logits: Logits, asks: Sequence[SampleRequest]) -> list[int | None]:
        """The next token for each, None where the host has to choose."""
        tokens: list[int | None] = [None] * len(asks)
        groups: dict[SamplingMethod, list[int]] = {}
        for number, ask in enumerate(asks):
            way = self.way_of(ask.row)
            if way is not None and logits.block.shape[1] == self._shape.vocabulary:
                groups.setdefault(way, []).append(number)
        for way, numbers in groups.items():
            try:
                chosen = self._run(way, logits.block, [asks[number] for number in numbers])
            except Exception:
                log.exception("tokens could not be chosen by a graph")
                continue
            for number, token in zip(numbers, chosen, strict=True):
                tokens[number] = None if token == UNDECIDED else token
        return tokens

    def finite(self, logits: Logits, indices: Sequence[int]) -> list[bool]:
        """Of which of the rows at ``indices`` the logits are finite for sure."""
        if logits.block.shape[1] != self._shape.vocabulary:
            return [False] * len(indices)
        bound = self._bind(Variant(SamplingMethod.GREEDY, gathers=True))
        inputs: dict[str, Array | Block] = {LOGITS: logits.block, ROWS: np.array(indices, np.int64)}
        found: list[bool] = (bound.run(inputs)["tokens"] != UNDECIDED).tolist()
        return found

    def _run(self, way: SamplingMethod, block: Block, asks: Sequence[SampleRequest]) -> list[int]:
        inputs: dict[str, Array | Block] = {LOGITS: block}
        changes = [ask.row.changes for ask in asks]
        variant = Variant(way, edits=any(changes), gathers=len(asks) < block.shape[0])
        if variant.gathers:
            inputs[ROWS] = np.array([ask.index for ask in asks])
        if way != SamplingMethod.GREEDY:
            inputs[PARAMETERS] = np.array([_parameters(ask) for ask in asks])
        if variant.edits:
            inputs[EDIT_IDS], inputs[EDIT_VALUES] = edits(changes)
        tokens: list[int] = self._bind(variant).run(inputs)["tokens"].tolist()
        return tokens

    def _bind(self, variant: Variant) -> BoundGraph:
        if variant not in self._bound:
            self._bound[variant] = self._load(build(variant, self._shape)).bind({})
        return self._bound[variant]


def _parameters(ask: SampleRequest) -> list[float]:
    options = ask.row.job.sampling
    top_p = options.top_p if options.top_p < 1.0 else NO_TOP_P
    return [options.temperature, options.top_k, top_p, options.min_p, ask.uniform]


def edits(changes: Sequence[Sequence[LogitsEdit]]) -> tuple[Array, Array]:
    """What changes each row, as the graphs take it.

    Returns:
        ``edit_ids [rows, m]`` and ``edit_values [rows, 3, m]``. A row that has fewer than ``m``
        has its last one again, a row that has none the one that changes nothing of token 0.
    """
    merged = [_merged(row) for row in changes]
    width = _MIN_EDITS
    while width < max(len(ids) for ids, _ in merged):
        width *= 2
    table = np.zeros((len(changes), width), np.int64)
    values = np.tile(_NO_EDIT[:, None], (len(changes), 1, width))
    for index, (ids, row) in enumerate(merged):
        if len(ids):
            table[index] = ids[-1]
            values[index] = row[:, -1:]
            table[index, : len(ids)] = ids
            values[index, :, : len(ids)] = row
    return table, values


def _merged(changes: Sequence[LogitsEdit]) -> tuple[Array, Array]:
    """The ids of all changes, each once, and what becomes of them: ``[m]``, ``[3, m]``."""
    if not changes:
        return np.zeros(0, np.int64), np.zeros((3, 0), np.float32)
    ids = np.unique(np.concatenate([change.ids for change in changes]))
    values = np.tile(_NO_EDIT[:, None], (1, len(ids)))
    for change in changes:
        column = values[_COLUMNS[change.kind]]
        where = np.searchsorted(ids, change.ids)
        if change.kind == EditKind.LOWERED:
            column[where] = -np.asarray(change.values)
        else:
            column[where] = -np.inf if change.kind == EditKind.FORBIDDEN else change.values
    return ids, values
