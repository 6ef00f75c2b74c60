"""Estimates how long a new job would wait, from what runs, for how long, and what waits."""

from dataclasses import dataclass

from server.engine.requests.job import Cost
from server.engine.requests.update import Completion

_SMOOTHING = 0.1  # weight of a new measurement in an exponential moving average
_TINY = 1e-9


@dataclass(frozen=True, slots=True)
class _Running:
    share: float  # of the model's capacity, 0 to 1
    started: float


class WaitEstimate:
    """Follows the jobs of one model in the order of their arrival. Times are in seconds.

    A waiting job is taken to start as soon as what runs leaves it room, and to run for the mean
    service time. Priorities and the division into lanes are ignored.

    Args:
        max_running: what can run at a time.
    """

    def __init__(self, max_running: Cost) -> None:
        self._max_running = max_running
        self._running: dict[int, _Running] = {}
        self._waiting: dict[int, float] = {}  # shares, in order of arrival
        self._running_share = self._waiting_share = 0.0
        # Moving averages.
        self.service_seconds = 0.0  # of a job, from its first run to its end
        self.first_token_seconds = 0.0  # of a job, from its first run to its first token

    def add(self, id_: int, cost: Cost, now: float) -> None:
        """A job arrives."""
        self._waiting[id_] = share = self._share(cost)
        self._waiting_share += share
        self._start(now)

    def remove(self, id_: int, completion: Completion | None, now: float) -> None:
        """A job ended. The times of a successful ``completion`` enter the averages."""
        running = self._running.pop(id_, None)
        if running is None:
            self._waiting_share -= self._waiting.pop(id_)
        else:
            self._running_share -= running.share
        if completion is not None and completion.is_success:
            first_token = completion.prefill_seconds
            service = first_token + completion.decode_seconds
            self.service_seconds = _smoothed(self.service_seconds, service)
            self.first_token_seconds = _smoothed(self.first_token_seconds, first_token)
        self._start(now)

    def wait_seconds(self, cost: Cost, now: float) -> float:
        """The time until a job that arrives now starts; 0 until a job has ended.

        Its start is a departure: of the jobs that run, in the order of their remaining times; then,
        one mean service time later, of those that follow them; and so on.
        """
        missing = self._running_share + self._waiting_share + self._share(cost) - 1.0
        if missing <= _TINY or not self._running:
            return 0.0
        rounds, missing = divmod(missing - _TINY, self._running_share)
        remaining = sorted(
            (max(running.started + self.service_seconds - now, 0.0), running.share)
            for running in self._running.values()
        )
        for seconds, share in remaining:
            missing -= share
            if missing < 0.0:
                return rounds * self.service_seconds + seconds
        return (rounds + 1.0) * self.service_seconds

    def _share(self, cost: Cost) -> float:
        limit = self._max_running
        return max(cost.num_sequences / limit.num_sequences, cost.num_tokens / limit.num_tokens)

    def _start(self, now: float) -> None:
        """Starts waiting jobs, in order, while they fit; one always does."""
        while self._waiting:
            id_, share = next(iter(self._waiting.items()))
            if self._running and self._running_share + share > 1.0 + _TINY:
                return
            del self._waiting[id_]
            self._running[id_] = _Running(share, now)
            self._waiting_share -= share
            self._running_share += share


def _smoothed(before: float, value: float) -> float:
    return value if before == 0.0 else before + _SMOOTHING * (value - before)
