"""Logits in device memory. Single rows, or their likeliest tokens, are copied to the host."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from server.constraint import Floats
from server.engine.decoding.logits import MAX_TOP, best_of
from server.engine.gpu.sampler_graph import build_row_gather, build_top_tokens
from server.engine.gpu.sampler_inputs import GATHERED, LOGITS, ROWS, LogitsSpec
from server.runtime.contract import TARGETS, TOP_TOKENS, BoundGraph, LoadModel
from server.runtime.host_ops import TopTokens
from server.runtime.memory import Array, Tensor

log = logging.getLogger(__name__)

# How many of the likeliest tokens a graph finds: only a few values, so that there are few graphs.
# A beam search needs two tokens for each beam.
_COUNTS = (8, 24, MAX_TOP)


class LogitsReader:
    """Reads the part of a model's logits that the host needs from one device.

    Args:
        load: loads a graph on the device; graphs that find tokens are loaded on first use.
        spec: the shape and type of the model's logits.
    """

    def __init__(self, load: LoadModel, spec: LogitsSpec) -> None:
        self._load, self._spec = load, spec
        self._gather = load(build_row_gather(spec)).bind({})
        self._top: dict[tuple[int, bool, bool], BoundGraph | None] = {}  # None after a failure

    def rows(self, logits: Tensor, indices: Sequence[int]) -> Floats:
        """See :meth:`server.engine.decoding.logits.Logits.rows`."""
        return self._gather.run({LOGITS: logits, ROWS: np.array(indices, np.int64)})[GATHERED]

    def top(
        self,
        logits: Tensor,
        indices: Sequence[int],
        count: int,
        targets: Sequence[int] | None = None,
    ) -> list[TopTokens] | None:
        """See :meth:`server.engine.decoding.logits.Logits.top`."""
        if count > MAX_TOP:
            return None
        count = min(next(each for each in _COUNTS if each >= count), self._spec.vocabulary)
        gathers_rows = len(indices) < logits.shape[0]
        key = (count, gathers_rows, targets is not None)
        inputs: dict[str, Array | Tensor] = {LOGITS: logits}
        if gathers_rows:
            inputs[ROWS] = np.array(indices, np.int64)
        if targets is not None:
            inputs[TARGETS] = np.array(targets, np.int64)
        try:
            bound = self._bind(*key)
            return None if bound is None else _top_tokens(bound.run(inputs)[TOP_TOKENS], count)
        except Exception:
            log.exception("finding the likeliest tokens on the device failed; the host does it")
            self._top[key] = None
            return None

    def _bind(self, count: int, gathers_rows: bool, has_targets: bool) -> BoundGraph | None:
        key = (count, gathers_rows, has_targets)
        if key not in self._top:
            graph = build_top_tokens(
                self._spec, count, gathers_rows=gathers_rows, has_targets=has_targets
            )
            self._top[key] = self._load(graph).bind({})
        return self._top[key]


def _top_tokens(found: Floats, count: int) -> list[TopTokens]:
    """Converts a graph's output ``found``: see :data:`server.runtime.contract.TOP_TOKENS`."""
    values = found.astype(np.float64)
    logits, ids = values[:, :count], found[:, count : 2 * count].astype(np.int64).tolist()
    with np.errstate(invalid="ignore"):
        totals = logits[:, 0] + np.log(values[:, 2 * count])
        logprobs = logits - totals[:, None]
        has_targets = found.shape[1] > 2 * count + 1
        targets = (values[:, -1] if has_targets else logits[:, 0]) - totals
    rows = logprobs.tolist()
    if not np.isfinite(logits).all():  # some tokens are impossible, or rows are not finite
        sizes = (logits > -np.inf).sum(1).tolist()
        ids = [row[:size] for row, size in zip(ids, sizes, strict=True)]
        rows = [row[:size] for row, size in zip(rows, sizes, strict=True)]
    return list(map(TopTokens, ids, rows, totals.tolist(), targets.tolist()))


@dataclass(frozen=True, slots=True)
class DeviceLogits:
    """Implements :class:`server.engine.decoding.logits.Logits`.

    ``best_tokens``: :data:`server.runtime.contract.BEST_TOKENS` of each row; None if the device
    does not find them. ``padded``: the logits of a padded step, rows of padding included.
    """

    tensor: Tensor
    reader: LogitsReader
    best_tokens: Sequence[int] | None = None
    padded: Tensor | None = None
    finds_top = True

    @property
    def knows_best(self) -> bool:
        return self.best_tokens is not None

    def rows(self, indices: Sequence[int]) -> Floats:
        return self.reader.rows(self.tensor, indices)

    def best(self, indices: Sequence[int]) -> list[int | None]:
        if self.best_tokens is None:
            return best_of(self.rows(indices))
        return [None if (token := self.best_tokens[i]) < 0 else token for i in indices]

    def top(
        self, indices: Sequence[int], count: int, targets: Sequence[int] | None = None
    ) -> list[TopTokens] | None:
        return self.reader.top(self.tensor, indices, count, targets)

    def kept_rows(self, indices: Sequence[int]) -> Floats:
        return self.rows(indices).copy()
