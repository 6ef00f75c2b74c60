"""Estimates how long a new job would wait, from the running and the waiting jobs."""

from dataclasses import dataclass, field

from server.engine.requests.job import Cost
from server.engine.requests.update import Completion

_SMOOTHING = 0.1  # weight of a new measurement in an exponential moving average
_TINY = 1e-9


@dataclass(slots=True, eq=False)
class _Client:
    """A client's jobs. Shares are fractions of the model's capacity, 0 to 1."""

    name: str
    waiting: "dict[int, _Job]" = field(default_factory=dict)  # in order of arrival
    waiting_share: float = 0.0
    running_share: float = 0.0
    num_jobs: int = 0


@dataclass(slots=True, eq=False)
class _Job:
    client: _Client
    share: float
    started: float = 0.0  # when it started; set once it runs


class WaitEstimate:
    """Models the queue of one model. Times are in seconds.

    It assumes that a waiting job starts as soon as the running jobs leave enough capacity, and runs
    for the mean service time. The client with the least running work is next; its jobs start in the
    order of arrival. Priorities and the division into lanes are ignored.

    Args:
        max_running: the most work that can run at once.
    """

    def __init__(self, max_running: Cost) -> None:
        self._max_running = max_running
        self._jobs: dict[int, _Job] = {}
        self._running: dict[int, _Job] = {}
        self._clients: dict[str, _Client] = {}
        # Clients with waiting jobs, in the order in which they began to wait.
        self._waiting: dict[str, _Client] = {}
        self._running_share = 0.0
        # Moving averages over jobs.
        self.service_seconds = 0.0  # from a job's start to its end
        self.first_token_seconds = 0.0  # from a job's start to its first token

    def add(self, id_: int, cost: Cost, now: float, client: str = "") -> None:
        """Adds a job that arrives at ``now``."""
        queue = self._clients.setdefault(client, _Client(client))
        job = self._jobs[id_] = queue.waiting[id_] = _Job(queue, self._share(cost))
        queue.num_jobs += 1
        queue.waiting_share += job.share
        self._waiting[client] = queue
        self._start(now)

    def remove(self, id_: int, completion: Completion | None, now: float) -> None:
        """Removes a job that ended. A successful ``completion`` updates the averages."""
        job = self._jobs.pop(id_)
        client = job.client
        if self._running.pop(id_, None) is None:
            self._take(id_, job)
        else:
            self._running_share -= job.share
            client.running_share -= job.share
        client.num_jobs -= 1
        if not client.num_jobs:
            del self._clients[client.name]
        if completion is not None and completion.is_success:
            first_token = completion.prefill_seconds
            service = first_token + completion.decode_seconds
            self.service_seconds = _smoothed(self.service_seconds, service)
            self.first_token_seconds = _smoothed(self.first_token_seconds, first_token)
        self._start(now)

    def wait_seconds(self, cost: Cost, now: float, client: str = "") -> float:
        """Estimates the time until a job that arrives now starts; 0 until a job has ended.

        A job starts when another one ends. The running jobs end in the order of their remaining
        times; the jobs that replace them end one mean service time later, and so on.
        """
        waiting = {name: queue.waiting_share for name, queue in self._waiting.items()}
        own = waiting.get(client, 0.0) + self._share(cost)
        ahead = sum(min(share, own) for name, share in waiting.items() if name != client)
        missing = self._running_share + ahead + own - 1.0
        if missing <= _TINY or not self._running:
            return 0.0
        rounds, missing = divmod(missing - _TINY, self._running_share)
        remaining = sorted(
            (max(job.started + self.service_seconds - now, 0.0), job.share)
            for job in self._running.values()
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
        """Starts waiting jobs, in order, while they fit. A job always fits if none runs."""
        while self._waiting:
            queue = next(iter(self._waiting.values()))
            if len(self._waiting) > 1:
                queue = min(self._waiting.values(), key=lambda each: each.running_share)
            id_, job = next(iter(queue.waiting.items()))
            if self._running and self._running_share + job.share > 1.0 + _TINY:
                return
            self._take(id_, job)
            self._running[id_] = job
            job.started = now
            self._running_share += job.share
            queue.running_share += job.share

    def _take(self, id_: int, job: _Job) -> None:
        """Removes a job from its client's queue."""
        queue = job.client
        del queue.waiting[id_]
        queue.waiting_share -= job.share
        if not queue.waiting:
            del self._waiting[queue.name]
            queue.waiting_share = 0.0


def _smoothed(before: float, value: float) -> float:
    return value if before == 0.0 else before + _SMOOTHING * (value - before)
