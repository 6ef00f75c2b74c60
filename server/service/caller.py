"""The client behind a call, whichever protocol it came by."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Caller:
    """``client`` names whose limits apply; ``deadline`` is in seconds of ``time.monotonic``."""

    client: str
    deadline: float | None
