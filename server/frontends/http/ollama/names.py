"""The models that Ollama's routes list, and their names there."""

from collections.abc import Iterator

from model.adapters import LATEST, adapter_label
from server.service.model_info import ModelInfo
from server.service.service import Service


def listed_models(service: Service) -> Iterator[tuple[str, ModelInfo]]:
    """The newest served version of each model, with its name: a tag follows, as clients expect."""
    infos = {info.name: info for info in service.served_models()}
    for name, info in infos.items():
        latest = adapter_label(name, LATEST)
        yield (name if info.base_model or latest in infos else latest), info
