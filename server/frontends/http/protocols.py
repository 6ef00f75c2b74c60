"""The protocols of the HTTP port. A new protocol is a module with ``routes``, and a line here.

``routes(context)`` returns the routes of a protocol; :class:`server.frontends.http.endpoint.Api`
makes them. ``context.service`` answers the calls, ``context.settings`` has the limits.
"""

from collections.abc import Callable, Sequence

from starlette.routing import BaseRoute

from server.frontends.http import (
    cohere_embed,
    console,
    libretranslate,
    oip,
    pipelines,
    rerank,
    tei,
    token_vectors,
    vllm,
)
from server.frontends.http.anthropic.routes import routes as anthropic_routes
from server.frontends.http.endpoint import Context
from server.frontends.http.ollama.routes import routes as ollama_routes
from server.frontends.http.openai.routes import routes as openai_routes

PROTOCOLS: Sequence[Callable[[Context], list[BaseRoute]]] = (
    console.routes,
    anthropic_routes,  # before OpenAI's: its /v1/models needs a header
    openai_routes,
    ollama_routes,
    libretranslate.routes,
    rerank.routes,
    cohere_embed.routes,
    token_vectors.routes,
    vllm.routes,
    oip.routes,
    tei.routes,  # last, like the next: {model} matches any first part of a path
    pipelines.routes,
)
