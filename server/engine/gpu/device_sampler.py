"""Samples tokens with ONNX graphs on the logits' device, for rows that need only a token.

Rows with the same sampling method share one run of a graph of
:mod:`server.engine.gpu.sampler_graph`. Rows that a graph leaves undecided, and rows that need
their whole logits, are sampled on the host.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from model.bundle import GraphSpec
from server.engine.decoding.logits import Logits
from server.engine.decoding.logits_processors import EditKind, LogitsEdit
from server.engine.gpu.recorded_sampler import RecordedSampler
from server.engine.gpu.sampler_graph import build
from server.engine.gpu.sampler_inputs import (
    EDIT_IDS,
    EDIT_VALUES,
    LOGITS,
    NO_TOP_P,
    PARAMETERS,
    ROWS,
    TOKENS,
    UNDECIDED,
    LogitsSpec,
    SamplerVariant,
    SamplingMethod,
)
from server.engine.requests.sequence import DecodingSequence
from server.runtime.contract import BoundGraph, LoadModel
from server.runtime.memory import Array, Tensor

log = logging.getLogger(__name__)

# Edits are padded to this number for each row, or to its next power-of-two multiple, so that
# inputs have few shapes and buffers are reused.
_MIN_EDITS = 16
# The row of ``edit_values`` that each kind of edit sets.
_EDIT_ROWS = {
    EditKind.ADDED: 0,
    EditKind.PENALIZED: 1,
    EditKind.SUBTRACTED: 2,
    EditKind.FORBIDDEN: 2,
}
# Edit values that leave a logit as it is: add 0, penalty 1, add 0.
_NO_EDIT = np.array([0, 1, 0], np.float32)


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """Requests the next token of ``sequence``, whose logits are row ``index``.

    ``uniform`` is the random number in [0, 1) to draw with.
    """

    index: int
    sequence: DecodingSequence
    uniform: float = 0.0


def logits_spec(graph: GraphSpec, suppressed: tuple[int, ...] = ()) -> LogitsSpec:
    """Returns the spec of the logits of a manifest's ``decode`` graph.

    ``suppressed`` tokens are never generated.
    """
    logits = graph.output(LOGITS)
    element_type = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(logits.dtype.value))
    return LogitsSpec(int(logits.shape[-1]), element_type, suppressed=suppressed)


class DeviceSampler:
    """Samples tokens for one model on one device. For the thread of one lane.

    Args:
        load: loads a graph on the device; each graph is loaded on first use.
        spec: the shape and type of the model's logits.
        recorded: samples after padded decode steps with recorded runs; None to record none.
    """

    def __init__(
        self, load: LoadModel, spec: LogitsSpec, recorded: RecordedSampler | None = None
    ) -> None:
        self._load = load
        self._spec = spec
        self._recorded = recorded
        self._bound: dict[SamplerVariant, BoundGraph] = {}

    def method_of(self, sequence: DecodingSequence) -> SamplingMethod | None:
        """Returns the method that samples the next token; None if the host has to sample it."""
        options, wanted = sequence.job.sampling, sequence.job.logprob_options
        if sequence.constraint is not None:
            return None
        if wanted.top_logprobs is not None and (options.is_greedy or wanted.are_processed):
            return None
        if options.is_greedy:
            return SamplingMethod.GREEDY
        if options.typical_p < 1.0 or options.top_k >= self._spec.num_candidates:
            return None
        if options.top_k:
            return SamplingMethod.TOP_K
        is_restricted = options.top_p < 1.0 or options.min_p > 0.0
        return SamplingMethod.NUCLEUS if is_restricted else SamplingMethod.MULTINOMIAL

    def sample(self, logits: Logits, requests: Sequence[SampleRequest]) -> list[int | None]:
        """Returns the next token for each request; None where the host has to sample it."""
        tokens: list[int | None] = [None] * len(requests)
        groups: dict[SamplingMethod, list[int]] = {}
        for number, request in enumerate(requests):
            method = self.method_of(request.sequence)
            if method is not None and logits.tensor.shape[1] == self._spec.vocabulary:
                groups.setdefault(method, []).append(number)
        for method, numbers in groups.items():
            try:
                sampled = self._run(method, logits, [requests[n] for n in numbers])
            except Exception:
                log.exception("sampling on the device failed; the host samples these rows")
                continue
            for number, token in zip(numbers, sampled, strict=True):
                tokens[number] = None if token == UNDECIDED else token
        return tokens

    def are_finite(self, logits: Logits, indices: Sequence[int]) -> list[bool]:
        """Returns, for each row at ``indices``, whether its logits are certain to be finite."""
        if logits.tensor.shape[1] != self._spec.vocabulary:
            return [False] * len(indices)
        bound = self._bind(SamplerVariant(SamplingMethod.GREEDY, gathers_rows=True))
        inputs: dict[str, Array | Tensor] = {
            LOGITS: logits.tensor,
            ROWS: np.array(indices, np.int64),
        }
        are_finite: list[bool] = (bound.run(inputs)[TOKENS] != UNDECIDED).tolist()
        return are_finite

    def _run(
        self, method: SamplingMethod, logits: Logits, requests: Sequence[SampleRequest]
    ) -> list[int]:
        inputs: dict[str, Array | Tensor] = {LOGITS: logits.tensor}
        edits = [request.sequence.edits for request in requests]
        variant = SamplerVariant(
            method, has_edits=any(edits), gathers_rows=len(requests) < logits.tensor.shape[0]
        )
        if variant.gathers_rows:
            inputs[ROWS] = np.array([request.index for request in requests])
        if method != SamplingMethod.GREEDY:
            parameters = list(map(_parameters, requests))
            if variant == SamplerVariant(method) and self._recorded and logits.padded is not None:
                sampled = self._recorded.sample(method, logits.padded, parameters)
                if sampled is not None:
                    return sampled
            inputs[PARAMETERS] = np.array(parameters)
        if variant.has_edits:
            inputs[EDIT_IDS], inputs[EDIT_VALUES] = edit_inputs(edits)
        tokens: list[int] = self._bind(variant).run(inputs)[TOKENS].tolist()
        return tokens

    def _bind(self, variant: SamplerVariant) -> BoundGraph:
        if variant not in self._bound:
            self._bound[variant] = self._load(build(variant, self._spec)).bind({})
        return self._bound[variant]


def _parameters(request: SampleRequest) -> list[float]:
    options = request.sequence.job.sampling
    top_p = options.top_p if options.top_p < 1.0 else NO_TOP_P
    return [options.temperature, options.top_k, top_p, options.min_p, request.uniform]


def edit_inputs(edits: Sequence[Sequence[LogitsEdit]]) -> tuple[Array, Array]:
    """Encodes each row's edits as inputs of a sampling graph.

    Returns:
        ``edit_ids [rows, m]`` and ``edit_values [rows, 3, m]``. A row with fewer than ``m`` edits
        repeats its last one; a row without edits repeats an edit of token 0 that changes nothing.
    """
    merged = [_merged(row) for row in edits]
    width = _MIN_EDITS
    while width < max(len(ids) for ids, _ in merged):
        width *= 2
    edit_ids = np.zeros((len(edits), width), np.int64)
    edit_values = np.tile(_NO_EDIT[:, None], (len(edits), 1, width))
    for index, (ids, values) in enumerate(merged):
        if len(ids):
            edit_ids[index] = ids[-1]
            edit_values[index] = values[:, -1:]
            edit_ids[index, : len(ids)] = ids
            edit_values[index, :, : len(ids)] = values
    return edit_ids, edit_values


def _merged(edits: Sequence[LogitsEdit]) -> tuple[Array, Array]:
    """Merges one row's edits, so that each id occurs once: ids ``[m]`` and values ``[3, m]``."""
    if not edits:
        return np.zeros(0, np.int64), np.zeros((3, 0), np.float32)
    ids = np.unique(np.concatenate([edit.ids for edit in edits]))
    values = np.tile(_NO_EDIT[:, None], (1, len(ids)))
    for edit in edits:
        row = values[_EDIT_ROWS[edit.kind]]
        places = np.searchsorted(ids, edit.ids)
        if edit.kind == EditKind.SUBTRACTED:
            row[places] = -np.asarray(edit.values)
        else:
            row[places] = -np.inf if edit.kind == EditKind.FORBIDDEN else edit.values
    return ids, values
