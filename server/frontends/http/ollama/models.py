"""``/api/tags``, ``/api/ps``, ``/api/show`` and ``/api/version``."""

import hashlib
from datetime import UTC, datetime
from typing import Any

import msgspec
from starlette.responses import Response

from model.bundle import EmbeddingKind, Task
from server.errors import InvalidArgumentError
from server.frontends.http.endpoint import Call, json_response
from server.frontends.http.ollama.names import listed_models
from server.service.generation_request import ReasoningSupport
from server.service.model_info import BundleInfo, ModelInfo

API_VERSION = "0.20.0"
"""The version of Ollama whose API is answered. Programs refuse servers that seem too old."""

_NEVER = datetime(9999, 12, 31, tzinfo=UTC)
_SUFFIXES = (("B", 10**9), ("M", 10**6), ("K", 10**3))


class ShowBody(msgspec.Struct, kw_only=True):
    """Names a model. ``name`` is the older name of ``model``; other fields have no effect."""

    model: str | None = None
    name: str | None = None


async def tags(call: Call[None]) -> Response:
    """Lists the models that generate texts or embed them."""
    listed = []
    for name, info in listed_models(call.service):
        bundle = call.service.bundle(info.name)
        if capabilities := _capabilities(info, bundle):
            size = sum(file.size for file in bundle.manifest.files)
            more = {"capabilities": capabilities, "modified_at": _time(bundle)}
            listed.append({**_listed(name, info, bundle, size), **more})
    return json_response({"models": listed})


async def running(call: Call[None]) -> Response:
    """Lists the same models: all of them are loaded, until the operator unloads them."""
    service = call.service
    listed = []
    for name, info in listed_models(service):
        bundle = service.bundle(info.name)
        if _capabilities(info, bundle):
            memory = info.memory or service.get_model(info.base_model).memory
            size = 0 if memory is None else memory.weight_bytes + memory.cache_resident_bytes
            more = {"expires_at": _NEVER, "context_length": info.max_length}
            listed.append({**_listed(name, info, bundle, size), **more})
    return json_response({"models": listed})


async def show(call: Call[ShowBody]) -> Response:
    """Describes one model."""
    given = call.body.model or call.body.name
    if not given:
        raise InvalidArgumentError("model", "is required")
    service = call.service
    info = service.get_model(given)
    bundle = service.bundle(info.name)
    name = info.architecture
    described = {
        "license": info.license,
        "parameters": f"num_ctx {info.max_length}",
        "template": bundle.manifest.chat_template or "",
        "details": _details(info),
        "model_info": {
            "general.architecture": name,
            "general.parameter_count": info.parameters,
            f"{name}.context_length": info.max_length,
            f"{name}.embedding_length": info.hidden_size,
            f"{name}.vocab_size": info.vocabulary_size,
        },
        "capabilities": _capabilities(info, bundle),
        "modified_at": _time(bundle),
    }
    return json_response(described)


async def version(_: Call[None]) -> Response:
    """The version of the API."""
    return json_response({"version": API_VERSION})


def _listed(name: str, info: ModelInfo, bundle: BundleInfo, size: int) -> dict[str, Any]:
    """A model in both lists. ``size``: in bytes."""
    files = sorted((file.path, file.sha256) for file in bundle.manifest.files)
    return {
        "name": name,
        "model": name,
        "size": size,
        "digest": hashlib.sha256(repr((info.name, files)).encode()).hexdigest(),
        "details": _details(info),
    }


def _details(info: ModelInfo) -> dict[str, Any]:
    return {
        "parent_model": info.base_model,
        "format": "onnx",
        "family": info.architecture,
        "families": [info.architecture],
        "parameter_size": _rounded(info.parameters),
        "quantization_level": info.precision,
        "context_length": info.max_length,
        "embedding_length": info.hidden_size,
    }


def _capabilities(info: ModelInfo, bundle: BundleInfo) -> list[str]:
    """What the protocol's routes can do with a model."""
    found = []
    template = bundle.chat_template
    if Task.GENERATE in info.tasks:
        found.append("completion")
        if bundle.manifest.fill_in_middle:
            found.append("insert")
        if info.image is not None:
            found.append("vision")
        if template is not None and template.describes_tools:
            found.append("tools")
        if template is not None and template.reasoning is not ReasoningSupport.NEVER:
            found.append("thinking")
    embedding = None if info.image else info.embedding
    if embedding and EmbeddingKind.DENSE in (embedding.kind, *embedding.kinds):
        found.append("embedding")
    return found


def _time(bundle: BundleInfo) -> datetime:
    return datetime.fromtimestamp(bundle.written_seconds, UTC)


def _rounded(count: int) -> str:
    """A number of parameters as Ollama writes it, such as 135M."""
    for suffix, unit in _SUFFIXES:
        if count >= unit:
            return f"{count / unit:.3g}{suffix}"
    return str(count)
