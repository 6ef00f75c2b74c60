"""The base class of all requests that name a model."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """``version``: empty for the newest version that is served."""

    model: str
    version: str = ""
