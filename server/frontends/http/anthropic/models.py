"""``/v1/models`` for Anthropic's clients. All models are on the only page."""

from typing import Any

from starlette.responses import Response

from server.frontends.http.endpoint import Call, json_response
from server.frontends.http.openai.models import served_model
from server.service.model_info import ModelInfo

_UNKNOWN_TIME = "1970-01-01T00:00:00Z"


async def list_models(call: Call[None]) -> Response:
    """Lists the served models."""
    data = [_model(info) for info in call.service.served_models()]
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return json_response({"data": data, "has_more": False, "first_id": first, "last_id": last})


async def get_model(call: Call[None]) -> Response:
    """Describes one model."""
    return json_response(_model(served_model(call)))


def _model(info: ModelInfo) -> dict[str, Any]:
    return {
        "type": "model",
        "id": info.name,
        "display_name": info.name,
        "created_at": _UNKNOWN_TIME,
        "lifecycle": "active",
        "max_input_tokens": info.max_length,
        "max_tokens": info.max_length,
    }
