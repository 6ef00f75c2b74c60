"""Bearer token authentication of every call except those that probe the server's health."""

import grpc

from server.errors import UnauthenticatedError
from server.frontends.grpc.identity import token_name
from server.frontends.grpc.refusal import RefusingInterceptor
from server.service.access_tokens import AccessTokens


class BearerTokenInterceptor(RefusingInterceptor):
    """Rejects calls without a valid token."""

    def __init__(self, tokens: AccessTokens) -> None:
        self._tokens = tokens

    def refusal(self, details: grpc.HandlerCallDetails) -> UnauthenticatedError | None:
        headers = [
            str(value) for key, value in details.invocation_metadata or () if key == "authorization"
        ]
        name = self._tokens.name_of(headers[0]) if len(headers) == 1 else None
        if name is None:
            return UnauthenticatedError()
        token_name.set(name)
        return None
