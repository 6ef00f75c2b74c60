"""Totals of one model, for protocols that report statistics."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Total:
    """How often something happened, and how long it took in all."""

    count: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ModelStatistics:
    """A model's calls and runs since the server started.

    ``succeeded`` and ``failed``: whole calls. ``queue``: from admission to the first run;
    ``compute``: from the first run to the result; both of each sequence or text that completed.
    ``num_runs``: runs of the model's graphs. ``last_call``: when the last call ended, in seconds
    since the Unix epoch; 0 for never.
    """

    succeeded: Total
    failed: Total
    queue: Total
    compute: Total
    num_runs: int
    last_call: float
