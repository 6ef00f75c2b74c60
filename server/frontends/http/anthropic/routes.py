"""The routes of Anthropic's protocol."""

from starlette.datastructures import Headers
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope

from server.frontends.http.anthropic.bodies import CountBody, MessagesBody
from server.frontends.http.anthropic.errors import ID_HEADERS, VERSION_HEADER, error_response
from server.frontends.http.anthropic.messages import count_tokens, create_message
from server.frontends.http.anthropic.models import get_model, list_models
from server.frontends.http.anthropic.options import message_names
from server.frontends.http.endpoint import Api, Context


class _VersionRoute(Route):
    """A route of requests with Anthropic's header. Those without it are OpenAI's."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] == "http" and VERSION_HEADER not in Headers(scope=scope):
            return Match.NONE, {}
        return super().matches(scope)


def routes(context: Context) -> list[BaseRoute]:
    """The routes."""
    api = Api(context=context, error=error_response, id_headers=ID_HEADERS)
    return [
        api.post("/v1/messages", MessagesBody, create_message, names=message_names),
        api.post("/v1/messages/count_tokens", CountBody, count_tokens, names=message_names),
        *(
            _VersionRoute(path, api.get(path, handler).endpoint, methods=["GET"])
            for path, handler in (
                ("/v1/models", list_models),
                ("/v1/models/{model}", get_model),
                ("/v1/models/{owner}/{model}", get_model),
            )
        ),
    ]
