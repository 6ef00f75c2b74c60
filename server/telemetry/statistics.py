"""Totals of one model, for protocols that report statistics."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Total:
    """The count and total duration of an operation."""

    count: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ModelStatistics:
    """A model's calls and runs since the server started.

    ``succeeded`` and ``failed`` cover whole calls. ``queue`` (from admission to the first run) and
    ``compute`` (from the first run to the result) cover the completed sequences and texts.
    ``num_runs`` counts runs of the model's graphs. ``last_call`` is when the last call ended, in
    seconds since the Unix epoch; 0 if there was none.
    """

    succeeded: Total
    failed: Total
    queue: Total
    compute: Total
    num_runs: int
    last_call: float
