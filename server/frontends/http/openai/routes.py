"""The routes of OpenAI's protocol."""

from starlette.routing import BaseRoute

from server.frontends.http.endpoint import Api, Context
from server.frontends.http.json_size import MAX_ID_VALUES
from server.frontends.http.openai import embeddings
from server.frontends.http.openai import responses as response
from server.frontends.http.openai.audio import audio_routes
from server.frontends.http.openai.chat import ChatBody, chat_completions, chat_names
from server.frontends.http.openai.completions import CompletionBody, completion_names, completions
from server.frontends.http.openai.decisions import DecisionsBody, decisions
from server.frontends.http.openai.errors import error_response
from server.frontends.http.openai.models import get_model, list_models


def routes(context: Context) -> list[BaseRoute]:
    """The routes."""
    api = Api(context=context, error=error_response)
    return [
        api.post("/v1/chat/completions", ChatBody, chat_completions, names=chat_names),
        api.post(
            "/v1/completions",
            CompletionBody,
            completions,
            names=completion_names,
            max_values=MAX_ID_VALUES,
        ),
        api.post(
            "/v1/embeddings",
            embeddings.EmbeddingsBody,
            embeddings.embeddings,
            names=embeddings.embedding_names,
            max_values=MAX_ID_VALUES,
        ),
        api.post(
            "/v1/responses", response.ResponseBody, response.responses, names=response.names_in
        ),
        api.post("/v1/decisions", DecisionsBody, decisions, names={"inputs": "questions"}),
        *audio_routes(context),
        api.get("/v1/models", list_models),
        api.get("/v1/models/{model}", get_model),
        api.get("/v1/models/{owner}/{model}", get_model),
    ]
