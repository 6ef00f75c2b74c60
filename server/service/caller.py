"""Who waits for an answer, and until when."""

from dataclasses import dataclass

from server.frontends.grpc.calls import Context, deadline_of
from server.frontends.grpc.identity import identity_of


@dataclass(frozen=True, slots=True)
class Caller:
    """``client``: whose limits count. ``deadline``: seconds of ``time.monotonic``."""

    client: str
    deadline: float | None

    @classmethod
    def of(cls, context: Context) -> "Caller":
        """Whoever made this call."""
        return cls(identity_of(context), deadline_of(context))
