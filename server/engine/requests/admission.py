"""Which requests are accepted: counted in rows and tokens, per model and per client.

Nothing here reads a clock or knows of lanes: the engine tells what it accepted and what ended.
Times are estimates for callers; what is accepted is decided by integers alone.
"""

from collections import OrderedDict
from dataclasses import dataclass

from server.engine.requests.sequence import Completion, Cost
from server.errors import Limit, OverloadedError, RequestTooLargeError, Resource

MIN_RETRY_SECONDS = 0.1
MAX_RETRY_SECONDS = 30.0
BULK_QUARTERS = 3  # of a model's room, that bulk work may fill
_SMOOTHING = 0.1
_NANOSECONDS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """Of one model. ``most``: accepted at a time. ``parallel``: what of it runs at once."""

    most: Cost
    parallel: Cost


class Admission:
    """What one model has accepted and not yet ended.

    Args:
        name: of the model, for callers.
        room: that it has.
    """

    def __init__(self, name: str, room: AdmissionLimits) -> None:
        self.name = name
        self._room = room
        self._accepted = Cost(0, 0)
        self._service_seconds = 0.0  # that a job runs; smoothed
        self._first_token_seconds = 0.0  # from its first run to its first token; smoothed

    def __repr__(self) -> str:
        return f"Admission({self.name}, {self._accepted})"

    @property
    def accepted(self) -> Cost:
        return self._accepted

    def check(
        self, cost: Cost, remaining_seconds: float | None = None, *, is_bulk: bool = False
    ) -> None:
        """Whether a request may come in now. Changes nothing.

        Args:
            cost: of all its jobs.
            remaining_seconds: until its caller gives up.
            is_bulk: it leaves others a quarter of the room, unless it finds the whole free.

        Raises:
            RequestTooLargeError: it could never be accepted, whatever else there is.
            OverloadedError: there is no room now, or the queue is longer than its caller waits.
        """
        most, after = self._room.most, self._accepted + cost
        if cost.num_rows > most.num_rows:
            raise RequestTooLargeError(
                f"need {cost.num_rows} places, at most {most.num_rows} in one request",
                limit=most.num_rows,
                asked=cost.num_rows,
                resource=Resource.SEQUENCES,
            )
        if cost.num_tokens > most.num_tokens:
            raise _too_many_tokens(
                cost,
                most.num_tokens,
                f"the request needs up to {cost.num_tokens} tokens, at most {most.num_tokens} "
                "are accepted",
            )
        if is_bulk and self._accepted.num_rows:
            most = Cost(most.num_rows * BULK_QUARTERS // 4, most.num_tokens * BULK_QUARTERS // 4)
        if after.num_rows > most.num_rows:
            raise self._full(Limit.QUEUE_ROWS, after, most)
        if after.num_tokens > most.num_tokens:
            raise self._full(Limit.QUEUE_TOKENS, after, most)
        wait = self.wait_seconds(cost)
        if remaining_seconds is not None and wait > 0:
            needed = wait + self._first_token_seconds
            if needed > remaining_seconds:
                raise OverloadedError(
                    f"the queue of model {self.name!r} is about {needed:.1f} s long, the deadline "
                    f"is in {max(remaining_seconds, 0.0):.1f} s",
                    _retry(needed - remaining_seconds),
                    Limit.DEADLINE,
                )

    def take(self, cost: Cost) -> None:
        """Accepts what :meth:`check` let pass."""
        self._accepted += cost

    def give_back(self, cost: Cost, end: Completion | None = None) -> None:
        """A job is over. ``end``: how, if it is to be learnt from."""
        self._accepted -= cost
        if end is not None and end.is_success:
            service = end.prefill_seconds + end.decode_seconds
            self._service_seconds = _smoothed(self._service_seconds, service)
            self._first_token_seconds = _smoothed(self._first_token_seconds, end.prefill_seconds)

    def wait_seconds(self, cost: Cost) -> float:
        """About how long a request would wait for its first run; 0 before anything ended."""
        after, parallel = self._accepted + cost, self._room.parallel
        if not self._accepted.num_rows:
            return 0.0
        waves = max(after.num_rows / parallel.num_rows, after.num_tokens / parallel.num_tokens)
        return max(waves - 1.0, 0.0) * self._service_seconds

    def _full(self, limit: Limit, after: Cost, most: Cost) -> OverloadedError:
        """With the time after which what is more than ``most`` is likely to have ended."""
        parallel = self._room.parallel
        waves = max(
            (after.num_rows - most.num_rows) / parallel.num_rows,
            (after.num_tokens - most.num_tokens) / parallel.num_tokens,
        )
        unit = "requests" if limit == Limit.QUEUE_ROWS else "tokens"
        return OverloadedError(
            f"the queue of model {self.name!r} is full: it holds no more {unit}",
            _retry(waves * self._service_seconds),
            limit,
        )


@dataclass(frozen=True, slots=True)
class ClientRate:
    """Tokens that one client may ask for: ``burst`` at once, ``per_second`` for ever.

    No more than ``max_clients`` are remembered: those that asked last.
    """

    per_second: int
    burst: int
    max_clients: int = 10_000


class ClientBuckets:
    """A token bucket for each client, as one integer: the generic cell rate algorithm.

    ITU-T I.371, annex A: the integer is the time at which the client's bucket will be full
    again; one in the past is a full bucket, and need not be remembered.
    """

    def __init__(self, rate: ClientRate) -> None:
        self._rate = rate
        self._full_at: OrderedDict[str, int] = OrderedDict()  # nanoseconds

    def __len__(self) -> int:
        return len(self._full_at)

    def check(self, client: str, cost: Cost, now: int) -> None:
        """Whether ``client`` may spend ``cost`` at ``now`` (nanoseconds). Changes nothing.

        Raises:
            RequestTooLargeError: it is more than a full bucket holds.
            OverloadedError: not yet.
        """
        if cost.num_tokens > self._rate.burst:
            raise _too_many_tokens(
                cost,
                self._rate.burst,
                f"the request needs up to {cost.num_tokens} tokens, one client may ask for "
                f"{self._rate.burst} at once",
            )
        wait = self._after(client, cost, now) - now - self._nanoseconds(self._rate.burst)
        if wait > 0:
            raise OverloadedError(
                f"a client may ask for {self._rate.per_second} tokens per second",
                max(wait / _NANOSECONDS, 0.001),
                Limit.CLIENT_TOKENS,
            )

    def take(self, client: str, cost: Cost, now: int) -> None:
        """Spends what :meth:`check` let pass."""
        self._full_at[client] = self._after(client, cost, now)
        self._full_at.move_to_end(client)
        while len(self._full_at) > self._rate.max_clients:
            self._full_at.popitem(last=False)

    def _after(self, client: str, cost: Cost, now: int) -> int:
        return max(self._full_at.get(client, now), now) + self._nanoseconds(cost.num_tokens)

    def _nanoseconds(self, num_tokens: int) -> int:
        """In which so many tokens flow into a bucket."""
        return num_tokens * _NANOSECONDS // self._rate.per_second


def _too_many_tokens(cost: Cost, limit: int, description: str) -> RequestTooLargeError:
    return RequestTooLargeError(
        description,
        limit=limit,
        asked=cost.num_tokens,
        resource=Resource.TOKENS,
        counts_new_tokens=cost.num_new_tokens > 0,
    )


def _retry(seconds: float) -> float:
    return min(max(seconds, MIN_RETRY_SECONDS), MAX_RETRY_SECONDS)


def _smoothed(before: float, value: float) -> float:
    return value if before == 0.0 else before + _SMOOTHING * (value - before)
