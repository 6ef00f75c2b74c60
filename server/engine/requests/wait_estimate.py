"""Estimates how long a new job would wait, from what runs, for how long, and what waits."""

from dataclasses import dataclass

from server.engine.requests.job import Cost
from server.engine.requests.update import Completion

_SMOOTHING = 0.1  # weight of a new measurement in an exponential moving average
_TINY = 1e-9


@dataclass(frozen=True, slots=True)
class _Running:
    client: str
    share: float  # of the model's capacity, 0 to 1
    started: float


class WaitEstimate:
    """Follows the jobs of one model. Times are in seconds.

    A waiting job is taken to start as soon as what runs leaves it room, and to run for the mean
    service time. Clients take turns; a client's jobs start in the order of arrival. Priorities and
    the division into lanes are ignored.

    Args:
        max_running: what can run at a time.
    """

    def __init__(self, max_running: Cost) -> None:
        self._max_running = max_running
        self._running: dict[int, _Running] = {}
        # Shares by client and job, in order of arrival.
        self._waiting: dict[str, dict[int, float]] = {}
        self._client_of: dict[int, str] = {}  # of waiting jobs
        self._running_share = 0.0
        # Moving averages.
        self.service_seconds = 0.0  # of a job, from its first run to its end
        self.first_token_seconds = 0.0  # of a job, from its first run to its first token

    def add(self, id_: int, cost: Cost, now: float, client: str = "") -> None:
        """A job arrives."""
        self._waiting.setdefault(client, {})[id_] = self._share(cost)
        self._client_of[id_] = client
        self._start(now)

    def remove(self, id_: int, completion: Completion | None, now: float) -> None:
        """A job ended. The times of a successful ``completion`` enter the averages."""
        running = self._running.pop(id_, None)
        if running is None:
            self._take(id_)
        else:
            self._running_share -= running.share
        if completion is not None and completion.is_success:
            first_token = completion.prefill_seconds
            service = first_token + completion.decode_seconds
            self.service_seconds = _smoothed(self.service_seconds, service)
            self.first_token_seconds = _smoothed(self.first_token_seconds, first_token)
        self._start(now)

    def wait_seconds(self, cost: Cost, now: float, client: str = "") -> float:
        """The time until a job that arrives now starts; 0 until a job has ended.

        Its start is a departure: of the jobs that run, in the order of their remaining times; then,
        one mean service time later, of those that follow them; and so on.
        """
        waiting = {name: sum(shares.values()) for name, shares in self._waiting.items()}
        own = waiting.get(client, 0.0) + self._share(cost)
        ahead = sum(min(share, own) for name, share in waiting.items() if name != client)
        missing = self._running_share + ahead + own - 1.0
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
            client = next(iter(self._waiting))
            if len(self._waiting) > 1:
                client = min(self._waiting, key=self._share_running)
            id_, share = next(iter(self._waiting[client].items()))
            if self._running and self._running_share + share > 1.0 + _TINY:
                return
            self._take(id_)
            self._running[id_] = _Running(client, share, now)
            self._running_share += share

    def _share_running(self, client: str) -> float:
        return sum(job.share for job in self._running.values() if job.client == client)

    def _take(self, id_: int) -> None:
        client = self._client_of.pop(id_)
        del self._waiting[client][id_]
        if not self._waiting[client]:
            del self._waiting[client]


def _smoothed(before: float, value: float) -> float:
    return value if before == 0.0 else before + _SMOOTHING * (value - before)
