"""The client that made a call, independent of the protocol."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Caller:
    """``client``: identity for per-client limits. ``deadline``: seconds of ``time.monotonic``."""

    client: str
    deadline: float | None
