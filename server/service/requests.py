"""What every request of the service has in common."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """``version``: the newest one served if empty."""

    model: str
    version: str = ""
