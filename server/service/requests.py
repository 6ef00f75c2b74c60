"""The base class of all requests that name a model."""

from dataclasses import dataclass

from server.bounds import MAX_NAME_BYTES, sized


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """``version``: empty for the newest version that is served."""

    model: str = sized(max_bytes=MAX_NAME_BYTES)
    version: str = sized("", max_bytes=MAX_NAME_BYTES)
