"""The routes of Ollama's API."""

from functools import partial
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from server.frontends.http.endpoint import Api, Call, Context
from server.frontends.http.failures import UnsupportedCallError
from server.frontends.http.ollama import embeddings, generation, models
from server.frontends.http.probes import error_response

_REASON = "models are bundles that the operator of this server adds and removes: it {} none"
# Calls that change models, by method.
_REFUSED = (
    ("POST", "/api/pull", "pulls"),
    ("POST", "/api/push", "pushes"),
    ("POST", "/api/create", "creates"),
    ("POST", "/api/copy", "copies"),
    ("DELETE", "/api/delete", "deletes"),
    ("POST", "/api/blobs/{digest}", "stores"),
    ("HEAD", "/api/blobs/{digest}", "stores"),
)


def routes(context: Context) -> list[BaseRoute]:
    """The routes."""
    api = Api(context=context, error=error_response)
    return [
        api.post(
            "/api/generate",
            generation.GenerateBody,
            generation.generate,
            names=generation.generate_names,
        ),
        api.post(
            "/api/chat",
            generation.ChatBody,
            generation.chat,
            names=generation.chat_names,
        ),
        api.post(
            "/api/embed",
            embeddings.EmbedBody,
            embeddings.embed,
            names=embeddings.EMBED_NAMES,
        ),
        api.post(
            "/api/embeddings",
            embeddings.EmbeddingsBody,
            embeddings.embeddings,
            names=embeddings.EMBEDDINGS_NAMES,
        ),
        api.post("/api/show", models.ShowBody, models.show, model_of=lambda _: ""),
        api.get("/api/tags", models.tags),
        api.get("/api/ps", models.running),
        api.get("/api/version", models.version),
        *(_refused(api, *call) for call in _REFUSED),
    ]


def _refused(api: Api, method: str, path: str, verb: str) -> Route:
    route = api.post(path, _ignore_body, partial(_refuse, _REASON.format(verb)))
    return Route(path, route.endpoint, methods=[method])


def _ignore_body(_: bytes, __: Headers) -> None:
    """Ignores the body of calls that are always rejected."""


async def _refuse(reason: str, _: Call[Any]) -> Response:
    raise UnsupportedCallError(reason)
