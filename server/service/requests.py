"""The base class of all requests that name a model."""

from dataclasses import dataclass

from server.bounds import MAX_NAME_BYTES, sized


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """Names a model. An empty ``version`` means the newest one that is served."""

    model: str = sized(max_bytes=MAX_NAME_BYTES)
    version: str = sized("", max_bytes=MAX_NAME_BYTES)
