"""Identifies callers by bearer token, client certificate or address."""

from starlette.types import Scope

from server.config import ServerConfig
from server.errors import UnauthenticatedError
from server.service.access_tokens import AccessTokens

_KEY_HEADERS = (b"x-api-key", b"api-key")


class Access:
    """Identifies clients as the gRPC front end does, so that the limits per client add up.

    Raises:
        StartupError: the token file cannot be read.
    """

    def __init__(self, config: ServerConfig) -> None:
        self._tokens = None if config.tokens is None else AccessTokens(config.tokens)

    def identity(self, scope: Scope, body_token: str | None = None) -> str:
        """Returns ``token:NAME``, else ``certificate:COMMON NAME``, else ``peer:ADDRESS``.

        Args:
            scope: the request's ASGI scope.
            body_token: the token from the body, for protocols that send it there.

        Raises:
            UnauthenticatedError: tokens are required, and the request has no valid one.
        """
        if self._tokens is not None:
            header = _header(scope, body_token)
            name = None if header is None else self._tokens.name_of(header)
            if name is None:
                raise UnauthenticatedError
            return f"token:{name}"
        return self.peer(scope)

    def is_identified(self, scope: Scope) -> bool:
        """Whether the request needs no token from its body: none is required, or a header has it.

        The token of the header may be wrong.
        """
        return self._tokens is None or _header(scope, None) is not None

    def peer(self, scope: Scope) -> str:
        """``certificate:COMMON NAME``, else ``peer:ADDRESS``, whatever the token."""
        certificate = scope.get("triune.certificate")
        if certificate is not None:
            return f"certificate:{certificate}"
        client = scope.get("client")
        return "peer:unix" if client is None else f"peer:{client[0]}"

    @property
    def needs_token(self) -> bool:
        """Whether calls need a token."""
        return self._tokens is not None


def _header(scope: Scope, body_token: str | None) -> str | None:
    """The request's token as an ``Authorization`` header; ``None`` unless there is exactly one."""
    given = [value for name, value in scope["headers"] if name == b"authorization"]
    if not given:
        given = [b"Bearer " + value for name, value in scope["headers"] if name in _KEY_HEADERS]
    if not given and body_token:
        return f"Bearer {body_token}"
    return given[0].decode("latin-1") if len(given) == 1 else None
