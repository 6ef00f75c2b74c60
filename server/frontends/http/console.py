"""The console: a web page to try models and to see the load. It calls the other protocols.

Its files contain nothing about this server, so they need no token; the calls of the page do.
"""

from pathlib import Path

from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute

from server.frontends.http.endpoint import Api, Call, Context, Handler
from server.frontends.http.probes import error_response

_FOLDER = Path(__file__).parents[3] / "console"
_MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src data:; media-src blob:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
}


def routes(context: Context) -> list[BaseRoute]:
    """Routes of the page at ``/console/`` and of its files, and a redirect from ``/``."""
    api = Api(context=context, error=error_response)

    async def redirect(_: Call[None]) -> Response:
        return RedirectResponse("/console/", headers=_HEADERS)

    files = sorted(path for path in _FOLDER.iterdir() if path.suffix in _MEDIA_TYPES)
    pages = [api.get(f"/console/{path.name}", _handler_of(path), is_public=True) for path in files]
    return [
        api.get("/", redirect, is_public=True),
        api.get("/console", redirect, is_public=True),
        api.get("/console/", _handler_of(_FOLDER / "index.html"), is_public=True),
        *pages,
    ]


def _handler_of(path: Path) -> Handler:
    content, media_type = path.read_bytes(), _MEDIA_TYPES[path.suffix]

    async def serve(_: Call[None]) -> Response:
        return Response(content, headers=_HEADERS, media_type=media_type)

    return serve
