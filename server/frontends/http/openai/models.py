"""``/v1/models``."""

from typing import Any

from starlette.responses import Response

from server.errors import ModelNotFoundError
from server.frontends.http.endpoint import Call, json_response
from server.service.model_info import ModelInfo, State

_NAME = ("owner", "model")
_FIGURES = ("min_cosine", "mean_cosine", "retrieval_agreement")


async def list_models(call: Call[None]) -> Response:
    """Lists the served models."""
    data = [_model(info, call) for info in call.service.served_models()]
    return json_response({"object": "list", "data": data})


async def get_model(call: Call[None]) -> Response:
    """Describes one model."""
    return json_response(_model(served_model(call), call))


def served_model(call: Call[None]) -> ModelInfo:
    """The model that the path names. Names with an owner, as Hugging Face's, are not served.

    Raises:
        ModelNotFoundError: it is not served.
    """
    name = "/".join(call.path_params[part] for part in _NAME if part in call.path_params)
    info = call.service.get_model(name)
    if info.state != State.READY:
        raise ModelNotFoundError(name, [each.name for each in call.service.served_models()])
    return info


def _model(info: ModelInfo, call: Call[None]) -> dict[str, Any]:
    """OpenAI's fields, vLLM's ``max_model_len``, the tasks, and formats of vectors and inputs."""
    described: dict[str, Any] = {
        "id": info.name,
        "object": "model",
        "created": 0,
        "owned_by": "triune",
        "max_model_len": info.max_length,
        "kind": info.kind,
        "tasks": info.tasks,
        "version": info.version,
    }
    if info.base_model:
        described |= {"root": info.base_model, "parent": info.base_model}
    if info.embedding is not None:
        described["embedding"] = {"kind": info.embedding.kind, "size": info.embedding.size}
        if info.embedding.kinds:
            described["embedding"]["kinds"] = info.embedding.kinds
            described["embedding"] |= _fidelity(info)
    if info.image is not None:
        described["image"] = {
            "height": info.image.height,
            "width": info.image.width,
            "num_channels": info.image.num_channels,
            "with_text": call.service.manifest(info.name).reads_texts,
        }
    if info.audio is not None:
        described["audio"] = {
            "sample_rate": info.audio.sample_rate,
            "window_seconds": info.audio.window_seconds,
            "languages": info.languages,
        }
    return described


def _fidelity(info: ModelInfo) -> dict[str, Any]:
    """The fidelity of each kind of vectors of a model with several, if the export measured it."""
    found = None if info.parity is None else info.parity.fidelity
    if info.embedding is None or found is None or not found.other_vectors:
        return {}
    by_kind: dict[str, Any] = {info.embedding.kind: found, **found.other_vectors}
    return {
        "fidelity": {
            kind: {name: getattr(one, name) for name in _FIGURES} for kind, one in by_kind.items()
        }
    }
