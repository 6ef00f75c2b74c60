"""Settings of the HTTP front end, derived from the server's configuration."""

from dataclasses import dataclass

from server.config import ServerConfig

MAX_CONNECTIONS = 16384
MAX_HEAD_BYTES = 32 << 10
MAX_BODY_BYTES = 16 << 20
# Maximum body bytes of all requests that are being received.
MAX_BUFFERED_BYTES = 256 << 20
HEAD_SECONDS = 15.0
BODY_SECONDS = 60.0
# Timeout of bodies with recordings; the gRPC front end has the same.
RECORDING_SECONDS = 120.0
KEEP_ALIVE_SECONDS = 75.0
# For a request that was answered before its body was complete.
LINGER_SECONDS = 30.0
MAX_LINGER_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """Settings of the HTTP front end. Limits are in bytes, times in seconds.

    Over ``max_connections``, the connection that has been idle for longest is closed.
    ``max_head_bytes`` limits request line and headers, ``max_body_bytes`` one request's body, and
    ``max_buffered_bytes`` the bodies that are being received. A request's head must arrive within
    ``head_seconds``, and its body within another ``body_seconds``. A connection without requests
    closes after ``keep_alive_seconds``; one that closes while its client still sends, after another
    ``linger_seconds`` or ``max_linger_bytes``; one whose client does not read for ``stall_seconds``
    is reset. ``cors_origins`` are the origins whose pages may call. ``max_input_bytes`` is the
    service's limit of one text. ``tei_model`` is the model of text-embeddings-inference's routes at
    the root; empty means that these routes do not exist.
    """

    max_connections: int = MAX_CONNECTIONS
    max_head_bytes: int = MAX_HEAD_BYTES
    max_body_bytes: int = MAX_BODY_BYTES
    max_buffered_bytes: int = MAX_BUFFERED_BYTES
    head_seconds: float = HEAD_SECONDS
    body_seconds: float = BODY_SECONDS
    keep_alive_seconds: float = KEEP_ALIVE_SECONDS
    linger_seconds: float = LINGER_SECONDS
    max_linger_bytes: int = MAX_LINGER_BYTES
    stall_seconds: float = 30.0
    cors_origins: tuple[str, ...] = ()
    max_input_bytes: int = 1 << 20
    tei_model: str = ""

    @classmethod
    def of(cls, config: ServerConfig) -> "HttpSettings":
        """The settings that follow from a server's configuration."""
        return cls(
            stall_seconds=config.stall_seconds,
            cors_origins=config.http_cors,
            max_input_bytes=config.max_input_bytes,
            tei_model=config.tei_model,
        )
