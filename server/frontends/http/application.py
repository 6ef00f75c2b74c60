"""The ASGI application: the routes of all protocols, CORS, and unknown addresses."""

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from server.errors import ServeError, UnauthenticatedError
from server.frontends.http.access import Access
from server.frontends.http.anthropic.errors import ID_HEADERS, VERSION_HEADER
from server.frontends.http.anthropic.errors import error_response as anthropic_error
from server.frontends.http.exchange import ID_HEADER, request_id_of
from server.frontends.http.failures import MethodNotAllowedError, RouteNotFoundError, failure_of
from server.frontends.http.openai.errors import error_response as openai_error
from server.frontends.http.origins import ForeignOriginError, check_origin
from server.frontends.http.probes import error_response

_OPENAI = "/v1/"  # below it, errors have OpenAI's shape
_METHODS = ("GET", "POST", "DELETE")
_EXPOSED_HEADERS = ("x-request-id", "retry-after", "retry-after-ms")


class Application:
    """Routes requests. Unknown paths need a token, too.

    Args:
        routes: the routes of all protocols.
        access: identifies the callers.
        origins: of pages that may call, besides those of this server.
    """

    def __init__(
        self, routes: Sequence[BaseRoute], access: Access, origins: Sequence[str] = ()
    ) -> None:
        self._access = access
        self._origins = frozenset(origins)
        self._router = Router(routes, redirect_slashes=False, default=self._not_found)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self  # so that the router raises
        try:
            check_origin(Headers(scope=scope), self._origins)
            await self._router(scope, receive, send)
        except ForeignOriginError as error:
            await self._fail(error, None, scope, receive, send)
        except HTTPException as error:
            refused: ServeError = MethodNotAllowedError(scope["method"])
            await self._fail(refused, error.headers, scope, receive, send)

    async def _not_found(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._fail(RouteNotFoundError(scope["path"]), None, scope, receive, send)

    async def _fail(
        self, error: ServeError, headers: object, scope: Scope, receive: Receive, send: Send
    ) -> None:
        try:
            self._access.identity(scope)
        except UnauthenticatedError as unauthenticated:
            error, headers = unauthenticated, None
        failure = failure_of(error)
        given = Headers(scope=scope)
        shape = openai_error if scope["path"].startswith(_OPENAI) else error_response
        is_anthropics = VERSION_HEADER in given
        response = (anthropic_error if is_anthropics else shape)(failure)
        response.status_code = failure.status
        id_headers = ID_HEADERS if is_anthropics else (ID_HEADER,)
        response.headers.update(dict.fromkeys(id_headers, request_id_of(given)))
        response.headers.update({**failure.headers, **(headers or {})})  # type: ignore[dict-item]
        await response(scope, receive, send)


def with_cors(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """Wraps ``app`` so that pages of ``origins`` may call it from browsers."""
    if not origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=_METHODS,
        allow_headers=["*"],
        expose_headers=_EXPOSED_HEADERS,
    )
