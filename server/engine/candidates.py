"""Restricts each job's logits to its candidates: the tokens of a lexical shortlist.

If the graph computes candidates only, :class:`CandidateLogits` has their logits; if it computes the
whole vocabulary, :func:`mask` sets all other logits to -inf. Both give the same rows, so that a row
does not depend on the other rows of its run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import is_

import numpy as np
import numpy.typing as npt

from server.constraint import Floats
from server.engine.decoding.logits import best_of
from server.engine.requests.job import GenerationJob
from server.runtime.memory import Tensor

ALL_TOKENS = np.zeros((0, 0), np.int32)
"""The value of the input ``CANDIDATES`` for a run that computes all logits."""

_WIDTH_STEP = 64
"""Widths are multiples of this, so that they seldom change."""


@dataclass(frozen=True, slots=True, eq=False)
class CandidateLogits:
    """Implements :class:`server.engine.decoding.logits.Logits`.

    Attributes:
        array: the candidates' logits ``[rows, width]``; -inf after the last candidate.
        ids: the candidates' token ids ``[rows, width]``; -1 after the last candidate.
        vocabulary_size: the width of the rows that :meth:`rows` returns.
    """

    array: Floats
    ids: npt.NDArray[np.int32]
    vocabulary_size: int
    padded = None
    finds_top = False

    @property
    def tensor(self) -> Tensor:
        return Tensor.of(self.rows(range(len(self.array))))

    @property
    def knows_best(self) -> bool:
        return True

    def rows(self, indices: Sequence[int]) -> Floats:
        rows = np.full((len(indices), self.vocabulary_size), -np.inf, np.float32)
        for row, index in zip(rows, indices, strict=True):
            ids = self.ids[index]
            # Padding has id -1, the last token, and logit -inf. It is written first, so a
            # candidate with that id overwrites it.
            row[ids[::-1]] = self.array[index, ::-1]
        return rows

    def kept_rows(self, indices: Sequence[int]) -> Floats:
        return self.rows(indices)

    def best(self, indices: Sequence[int]) -> list[int | None]:
        is_whole = len(indices) == len(self.array)
        columns = best_of(self.array if is_whole else self.array[list(indices)])
        return [
            None if column is None else self.ids.item(index, column)
            for index, column in zip(indices, columns, strict=True)
        ]

    def top(self, indices: Sequence[int], count: int, targets: Sequence[int] | None = None) -> None:
        del indices, count, targets


@dataclass(frozen=True, slots=True, eq=False)
class CandidateBatch:
    """The candidates of a run's rows.

    Attributes:
        ids: the token ids ``[rows, width]`` of each row, ascending, then -1.
        tensor: ``ids`` as a tensor, for the input ``CANDIDATES``.
        vocabulary_size: the model's vocabulary size.
    """

    ids: npt.NDArray[np.int32]
    tensor: Tensor
    vocabulary_size: int

    def logits(self, array: Floats) -> CandidateLogits:
        """Wraps the logits ``[rows, width]`` of the candidates."""
        return CandidateLogits(array, self.ids, self.vocabulary_size)


class CandidateBatches:
    """Combines the candidates of jobs in one array, and rewrites only rows whose job changed.

    ``vocabulary_size``: the model's vocabulary size.
    """

    def __init__(self, vocabulary_size: int) -> None:
        self._vocabulary_size = vocabulary_size
        self._ids = ALL_TOKENS
        self._jobs: list[GenerationJob | None] = []  # the job of each row of ``_ids``
        self._batches: dict[int, CandidateBatch] = {}  # of the first n rows of ``_ids``, by n
        self._latest_jobs: Sequence[GenerationJob] = ()
        self._latest: CandidateBatch | None = None

    def of(self, jobs: Sequence[GenerationJob]) -> CandidateBatch | None:
        """Returns the candidates for a run with one row for each job; None if it needs all logits.

        The batch is valid until the next call.
        """
        latest = self._latest_jobs
        if self._latest is None or len(jobs) != len(latest) or not all(map(is_, jobs, latest)):
            self._latest = self._combine(jobs)
            self._latest_jobs = () if self._latest is None else tuple(jobs)
        return self._latest

    def _combine(self, jobs: Sequence[GenerationJob]) -> CandidateBatch | None:
        lists = [job.candidates.ids for job in jobs if job.candidates is not None]
        widest = max(map(len, lists), default=0)
        if len(lists) < len(jobs) or not 0 < widest < self._vocabulary_size:
            return None
        self._make_room(len(jobs), widest)
        for index, (job, candidates) in enumerate(zip(jobs, lists, strict=True)):
            if job is not self._jobs[index]:
                row = self._ids[index]
                row[: len(candidates)] = candidates
                row[len(candidates) :] = -1
                self._jobs[index] = job
        batch = self._batches.get(len(jobs))
        if batch is None:
            ids = self._ids[: len(jobs)]
            batch = CandidateBatch(ids, Tensor.of(ids), self._vocabulary_size)
            self._batches[len(jobs)] = batch
        return batch

    def _make_room(self, num_jobs: int, widest: int) -> None:
        """Allocates a new array if this one is too small, or far too wide for half of its rows."""
        num_rows, width = self._ids.shape
        is_too_wide = width > 2 * widest + _WIDTH_STEP and 2 * num_jobs >= num_rows
        if num_jobs <= num_rows and widest <= width and not is_too_wide:
            return
        width = min(-(-widest // _WIDTH_STEP) * _WIDTH_STEP, self._vocabulary_size - 1)
        num_rows = max(num_jobs, num_rows)
        self._ids = np.full((num_rows, width), -1, np.int32)
        self._jobs = [None] * num_rows
        self._batches = {}


def mask(logits: Floats, jobs: Sequence[GenerationJob]) -> None:
    """Sets all ``logits [rows, vocabulary]`` to -inf except those of each row's candidates."""
    for row, job in zip(logits, jobs, strict=True):
        if job.candidates is not None:
            kept = row[job.candidates.ids]
            row.fill(-np.inf)
            row[job.candidates.ids] = kept
