"""The client that made a call, independent of the protocol."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Caller:
    """The client's identity, for per-client limits, and a deadline in ``time.monotonic``
    seconds; ``None`` means no deadline.
    """

    client: str
    deadline: float | None
