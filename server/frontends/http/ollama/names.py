"""Ollama's names of models: ``NAME:TAG``, where ``NAME`` alone means ``NAME:latest``."""

from typing import Any

from model.adapters import SEPARATOR
from server.errors import ModelNotFoundError
from server.frontends.http.endpoint import Call
from server.service.model_info import ModelInfo, State
from server.service.service import Service

_LATEST = f"{SEPARATOR}latest"


def served_name(name: str, service: Service) -> str:
    """The model that ``name`` means: ``NAME:latest`` is ``NAME`` unless an adapter is called so.

    Other tags name adapters. Names that are not served are returned as they are.
    """
    bundle = name.removesuffix(_LATEST)
    return bundle if bundle != name and not _is_served(name, service) else name


def _is_served(name: str, service: Service) -> bool:
    try:
        service.bundle(name)
    except ModelNotFoundError:
        return False
    return True


def model_of(call: Call[Any]) -> str:
    """The served model that a body names."""
    return served_name(call.body.model, call.service)


def listed_name(info: ModelInfo, served: set[str]) -> str:
    """The name of a model in lists: with a tag, as Ollama's clients expect.

    Args:
        info: the model.
        served: the names of all served models.
    """
    tagged = info.name + _LATEST
    return info.name if info.base_model or tagged in served else tagged


def served_models(service: Service) -> list[ModelInfo]:
    """The newest served version of each model."""
    served = [info for info in service.list_models() if info.state == State.READY]
    return list({info.name: info for info in served}.values())
