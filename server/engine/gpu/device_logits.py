"""Logits that stay in device memory; rows, or their likeliest tokens, are copied to the host."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from server.constraint import Floats
from server.engine.decoding.logits import greedy
from server.engine.gpu.sampler_graph import build_row_gather, build_top_tokens
from server.engine.gpu.sampler_inputs import GATHERED, LOGITS, ROWS, LogitsSpec
from server.runtime.contract import TARGETS, TOP_TOKENS, BoundGraph, LoadModel
from server.runtime.host_ops import TopTokens
from server.runtime.memory import Array, Tensor

# More of the likeliest tokens are found on the host. Others are multiples, so that graphs are few.
_MAX_TOP, _TOP_STEP = 64, 4


class LogitsReader:
    """Reads what the host needs of the logits of one model on one device.

    Args:
        load: loads a graph on the device; those that find tokens are loaded on first use.
        spec: of the model's logits.
    """

    def __init__(self, load: LoadModel, spec: LogitsSpec) -> None:
        self._load, self._spec = load, spec
        self._gather = load(build_row_gather(spec)).bind({})
        self._top: dict[tuple[int, bool, bool], BoundGraph] = {}

    def rows(self, logits: Tensor, indices: Sequence[int]) -> Floats:
        """As :meth:`server.engine.decoding.logits.Logits.rows`."""
        return self._gather.run({LOGITS: logits, ROWS: np.array(indices, np.int64)})[GATHERED]

    def top(
        self,
        logits: Tensor,
        indices: Sequence[int],
        count: int,
        targets: Sequence[int] | None = None,
    ) -> list[TopTokens] | None:
        """As :meth:`server.engine.decoding.logits.Logits.top`."""
        count = min(-(-count // _TOP_STEP) * _TOP_STEP, self._spec.vocabulary)
        if count > _MAX_TOP:
            return None
        gathers_rows = len(indices) < logits.shape[0]
        has_targets = targets is not None
        key = (count, gathers_rows, has_targets)
        if key not in self._top:
            graph = build_top_tokens(
                self._spec, count, gathers_rows=gathers_rows, has_targets=has_targets
            )
            self._top[key] = self._load(graph).bind({})
        inputs: dict[str, Array | Tensor] = {LOGITS: logits}
        if gathers_rows:
            inputs[ROWS] = np.array(indices, np.int64)
        if has_targets:
            inputs[TARGETS] = np.array(targets, np.int64)
        return _top_tokens(self._top[key].run(inputs)[TOP_TOKENS], count)


def _top_tokens(found: Floats, count: int) -> list[TopTokens]:
    """``found``: as :data:`server.runtime.contract.TOP_TOKENS` describes it."""
    values = found.astype(np.float64)
    logits, ids = values[:, :count], found[:, count : 2 * count].astype(np.int64).tolist()
    with np.errstate(invalid="ignore"):
        totals = logits[:, 0] + np.log(values[:, 2 * count])
        logprobs = logits - totals[:, None]
        targets: list[float | None] = [None] * len(found)
        if found.shape[1] > 2 * count + 1:
            targets = (values[:, -1] - totals).tolist()
    rows = logprobs.tolist()
    if not np.isfinite(logits).all():  # some tokens are impossible, or rows are not finite
        sizes = (logits > -np.inf).sum(1).tolist()
        ids = [row[:size] for row, size in zip(ids, sizes, strict=True)]
        rows = [row[:size] for row, size in zip(rows, sizes, strict=True)]
    return list(map(TopTokens, ids, rows, totals.tolist(), targets))


@dataclass(frozen=True, slots=True)
class DeviceLogits:
    """Implements :class:`server.engine.decoding.logits.Logits`.

    ``best_tokens``: of each row, as :data:`server.runtime.contract.BEST_TOKENS`; None if the device
    does not find them. ``padded``: with rows of padding, of a padded step.
    """

    tensor: Tensor
    reader: LogitsReader
    best_tokens: Sequence[int] | None = None
    padded: Tensor | None = None

    @property
    def knows_best(self) -> bool:
        return self.best_tokens is not None

    def rows(self, indices: Sequence[int]) -> Floats:
        return self.reader.rows(self.tensor, indices)

    def best(self, indices: Sequence[int]) -> list[int | None]:
        if self.best_tokens is None:
            return greedy(self.rows(indices))
        return [None if (token := self.best_tokens[i]) < 0 else token for i in indices]

    def top(
        self, indices: Sequence[int], count: int, targets: Sequence[int] | None = None
    ) -> list[TopTokens] | None:
        return self.reader.top(self.tensor, indices, count, targets)

    def kept_rows(self, indices: Sequence[int]) -> Floats:
        return self.rows(indices).copy()
