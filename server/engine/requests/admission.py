"""Admission control: limits on accepted sequences and tokens, per model and per client.

It reads no clock and does not know the lanes: the engine reports accepted and ended jobs. Times are
in seconds. Estimated waits (:mod:`server.engine.requests.wait_estimate`) set retry delays and
reject requests that would miss their deadline.
"""

from collections import OrderedDict
from dataclasses import dataclass

from server.engine.requests.client_shares import ClientShares
from server.engine.requests.job import Cost
from server.engine.requests.update import Completion
from server.engine.requests.wait_estimate import WaitEstimate
from server.errors import InvalidArgumentError, Limit, OverloadedError

MIN_RETRY_SECONDS = 0.1
MAX_RETRY_SECONDS = 30.0
BULK_QUARTERS = 3  # bulk work may use three quarters of a model's limits
_NANOSECONDS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """How much work one model accepts, and how much of it can run at once."""

    max_accepted: Cost  # running and queued jobs together
    max_running: Cost


class Admission:
    """Counts the accepted jobs of one model that have not ended.

    Args:
        name: the model's name, for error messages.
        limits: the model's limits.
    """

    def __init__(self, name: str, limits: AdmissionLimits) -> None:
        self.name = name
        self._limits = limits
        self._accepted = Cost(0, 0)
        self._waits = WaitEstimate(limits.max_running)
        self._shares = ClientShares(limits.max_accepted)

    def __repr__(self) -> str:
        return f"Admission({self.name}, {self._accepted})"

    @property
    def accepted(self) -> Cost:
        return self._accepted

    def check(
        self,
        cost: Cost,
        now: float,
        remaining_seconds: float | None = None,
        *,
        is_bulk: bool = False,
        client: str = "",
    ) -> None:
        """Raises if a request cannot be accepted now. Records only which client it refused.

        Args:
            cost: the total cost of the request's jobs.
            now: the current time in seconds.
            remaining_seconds: the time until the request's deadline; None without a deadline.
            is_bulk: whether it is background work, which leaves a quarter of the limits to other
                requests unless the model is idle.
            client: the client that sends the request.

        Raises:
            InvalidArgumentError: the request exceeds the limits even of an idle model.
            OverloadedError: the model is at its limits, or the estimated wait exceeds the deadline.
        """
        max_accepted, total = self._limits.max_accepted, self._accepted + cost
        if cost.num_sequences > max_accepted.num_sequences:
            raise InvalidArgumentError(
                "inputs",
                f"the request needs {cost.num_sequences} sequences, at most "
                f"{max_accepted.num_sequences} are accepted",
            )
        if cost.num_tokens > max_accepted.num_tokens:
            raise InvalidArgumentError(
                _token_field(cost),
                f"the request needs up to {cost.num_tokens} tokens, at most "
                f"{max_accepted.num_tokens} are accepted",
            )
        if is_bulk and self._accepted.num_sequences:
            max_accepted = Cost(
                max_accepted.num_sequences * BULK_QUARTERS // 4,
                max_accepted.num_tokens * BULK_QUARTERS // 4,
            )
        limit = None
        if total.num_sequences > max_accepted.num_sequences:
            limit = Limit.QUEUE_ROWS
        elif total.num_tokens > max_accepted.num_tokens:
            limit = Limit.QUEUE_TOKENS
        elif self._shares.exceeds(client, cost, self._accepted, now):
            limit = Limit.CLIENT_SHARE
        if limit is not None:
            self._shares.refuse(client, now)
            raise self._queue_full_error(limit, total, max_accepted)
        if remaining_seconds is None:
            return
        wait = self.wait_seconds(cost, now, client)
        if wait > 0:
            needed = wait + self._waits.first_token_seconds
            if needed > remaining_seconds:
                raise OverloadedError(
                    f"the queue of model {self.name!r} is about {needed:.1f} s long, the deadline "
                    f"is in {max(remaining_seconds, 0.0):.1f} s",
                    _clamped_retry_seconds(needed - remaining_seconds),
                    Limit.DEADLINE,
                )

    def accept(self, id_: int, cost: Cost, now: float, client: str = "") -> None:
        """Counts a job of a request that :meth:`check` accepted."""
        self._accepted += cost
        self._shares.add(id_, client, cost)
        self._waits.add(id_, cost, now, client)

    def release(self, id_: int, cost: Cost, completion: Completion | None, now: float) -> None:
        """Subtracts an ended job. A successful ``completion`` updates the estimates."""
        self._accepted -= cost
        self._shares.remove(id_, cost)
        self._waits.remove(id_, completion, now)

    def wait_seconds(self, cost: Cost, now: float, client: str = "") -> float:
        """Estimates a request's time in the queue; 0 until a job has ended."""
        return self._waits.wait_seconds(cost, now, client)

    def _queue_full_error(self, limit: Limit, total: Cost, max_accepted: Cost) -> OverloadedError:
        """Makes the error of a full queue. Its retry delay estimates when enough jobs will end."""
        running = self._limits.max_running
        waves = max(
            (total.num_sequences - max_accepted.num_sequences) / running.num_sequences,
            (total.num_tokens - max_accepted.num_tokens) / running.num_tokens,
        )
        unit = "tokens" if limit == Limit.QUEUE_TOKENS else "requests"
        whose = " of this client: others wait" if limit == Limit.CLIENT_SHARE else ""
        return OverloadedError(
            f"the queue of model {self.name!r} is full: it holds no more {unit}{whose}",
            _clamped_retry_seconds(waves * self._waits.service_seconds),
            limit,
        )


@dataclass(frozen=True, slots=True)
class ClientRate:
    """How many tokens each client may request: ``burst`` at once, ``per_second`` on average.

    Only the ``max_clients`` latest clients are tracked.
    """

    per_second: int
    burst: int
    max_clients: int = 10_000


class ClientBuckets:
    """A token bucket for each client, as one integer: the generic cell rate algorithm.

    ITU-T I.371, annex A: the integer is the time at which the client's bucket will be full
    again. A time in the past is a full bucket, and can be forgotten.
    """

    def __init__(self, rate: ClientRate) -> None:
        self._rate = rate
        self._full_at: OrderedDict[str, int] = OrderedDict()  # nanoseconds

    def __len__(self) -> int:
        return len(self._full_at)

    def check(self, client: str, cost: Cost, now: int) -> None:
        """Raises if ``client`` may not spend ``cost`` at ``now`` (nanoseconds). Changes nothing.

        Raises:
            InvalidArgumentError: ``cost`` exceeds a full bucket.
            OverloadedError: the bucket holds too few tokens now.
        """
        if cost.num_tokens > self._rate.burst:
            raise InvalidArgumentError(
                _token_field(cost),
                f"the request needs up to {cost.num_tokens} tokens, one client may ask for "
                f"{self._rate.burst} at once",
            )
        wait = self._full_at_after(client, cost, now) - now - self._nanoseconds(self._rate.burst)
        if wait > 0:
            raise OverloadedError(
                f"a client may ask for {self._rate.per_second} tokens per second",
                max(wait / _NANOSECONDS, 0.001),
                Limit.CLIENT_TOKENS,
            )

    def spend(self, client: str, cost: Cost, now: int) -> None:
        """Spends a cost that :meth:`check` accepted."""
        self._full_at[client] = self._full_at_after(client, cost, now)
        self._full_at.move_to_end(client)
        while len(self._full_at) > self._rate.max_clients:
            self._full_at.popitem(last=False)

    def _full_at_after(self, client: str, cost: Cost, now: int) -> int:
        """Returns when the bucket will be full again if the client spends ``cost`` at ``now``."""
        return max(self._full_at.get(client, now), now) + self._nanoseconds(cost.num_tokens)

    def _nanoseconds(self, num_tokens: int) -> int:
        """Returns the time in which a bucket gains ``num_tokens``."""
        return num_tokens * _NANOSECONDS // self._rate.per_second


def _token_field(cost: Cost) -> str:
    """Returns the field of a request with too many tokens: fewer new ones may be enough."""
    return "max_new_tokens" if cost.num_new_tokens else "inputs"


def _clamped_retry_seconds(seconds: float) -> float:
    return min(max(seconds, MIN_RETRY_SECONDS), MAX_RETRY_SECONDS)
