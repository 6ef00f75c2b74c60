"""Who waits for an answer, and until when."""

import time
from dataclasses import dataclass

from server.errors import DeadlineError
from server.rpc.calls import Context, deadline_of
from server.rpc.identity import identity_of


@dataclass(frozen=True, slots=True)
class Caller:
    """``client``: whose limits count. ``deadline``: seconds of ``time.monotonic``."""

    client: str
    deadline: float | None

    def check(self) -> None:
        """Raises ``DeadlineError`` if it is too late for them."""
        if self.deadline is not None and self.deadline <= time.monotonic():
            raise DeadlineError

    @classmethod
    def of(cls, context: Context) -> "Caller":
        """Whoever made this call."""
        return cls(identity_of(context), deadline_of(context))
