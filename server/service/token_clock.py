"""The times between the tokens of one output."""

from collections.abc import Sequence
from itertools import pairwise

from server.telemetry.metrics import Metrics


class TokenClock:
    """Counts one output's tokens, and reports its time to first token and inter-token times.

    Args:
        model: the model's name.
        started: when the call arrived, in seconds of ``time.monotonic``.
        metrics: receives the times.
    """

    def __init__(self, model: str, started: float, metrics: Metrics) -> None:
        self.num_tokens = 0
        self._model = model
        self._metrics = metrics
        self._last = started

    def add(self, moments: Sequence[float]) -> None:
        """Adds tokens that arrived at ``moments``, of which there must be at least one."""
        intervals = [after - before for before, after in pairwise((self._last, *moments))]
        if not self.num_tokens:
            self._metrics.on_first_token(self._model, intervals.pop(0))
        if intervals:
            self._metrics.on_next_tokens(self._model, intervals)
        self.num_tokens += len(moments)
        self._last = moments[-1]
