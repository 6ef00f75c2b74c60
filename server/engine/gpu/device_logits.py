"""Logits that stay in device memory; rows are copied to the host on request."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from server.constraint import Floats
from server.engine.decoding.logits import greedy
from server.engine.gpu.sampler_graph import build_row_gather
from server.engine.gpu.sampler_inputs import GATHERED, LOGITS, ROWS, LogitsSpec
from server.runtime.contract import BoundGraph, LoadModel
from server.runtime.memory import Tensor


def bind_row_gather(load: LoadModel, spec: LogitsSpec) -> BoundGraph:
    """Loads the graph that copies rows of logits to the host."""
    return load(build_row_gather(spec)).bind({})


@dataclass(frozen=True, slots=True)
class DeviceLogits:
    """Implements :class:`server.engine.decoding.logits.Logits`.

    ``row_gather``: made by :func:`bind_row_gather` for the same device. ``best_tokens``: of each
    row, as :data:`server.runtime.contract.BEST_TOKENS`; None if the device does not find them.
    ``padded``: with rows of padding, of a padded step.
    """

    tensor: Tensor
    row_gather: BoundGraph
    best_tokens: Sequence[int] | None = None
    padded: Tensor | None = None

    @property
    def knows_best(self) -> bool:
        return self.best_tokens is not None

    def rows(self, indices: Sequence[int]) -> Floats:
        return self.row_gather.run({LOGITS: self.tensor, ROWS: np.array(indices, np.int64)})[
            GATHERED
        ]

    def best(self, indices: Sequence[int]) -> list[int | None]:
        if self.best_tokens is None:
            return greedy(self.rows(indices))
        return [None if (token := self.best_tokens[i]) < 0 else token for i in indices]

    def kept_rows(self, indices: Sequence[int]) -> Floats:
        return self.rows(indices).copy()
