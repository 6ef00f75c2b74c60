"""Describes models and the server as the protocol's JSON objects.

Each function returns a JSON value. The HTTP front end sends it unchanged; the gRPC front end
converts it to the message with the same field names.
"""

import importlib.metadata
from collections.abc import Iterable
from typing import Any

from model.bundle import Device, Manifest
from server.errors import ModelNotFoundError
from server.frontends.oip.messages import DEFAULT_PRIORITY_LEVEL, PRIORITY_LEVELS
from server.frontends.oip.signatures import GENERATIVE, signature_of, tasks_of
from server.frontends.oip.tensor_spec import TensorSpec
from server.frontends.oip.tensors import BYTES
from server.service.model_info import ModelInfo, State
from server.service.service import Service
from server.telemetry.statistics import Total

Json = dict[str, Any]

SERVER_NAME = "triune"
PLATFORM = "triune_onnx"
BACKEND = "triune"
EXTENSIONS = (
    *("binary_tensor_data", "generate", "model_configuration", "model_repository", "parameters"),
    *("schedule_policy", "statistics"),
)
_STATES = {
    State.LOADING: "LOADING",
    State.READY: "READY",
    State.REFUSED: "UNAVAILABLE",
    State.UNLOADING: "UNLOADING",
}


def server_version() -> str:
    """The server's version; "unknown" if it runs from a checkout that is not installed."""
    try:
        return importlib.metadata.version(SERVER_NAME)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def server_metadata() -> Json:
    """The server's name, version and protocol extensions."""
    return {"name": SERVER_NAME, "version": server_version(), "extensions": list(EXTENSIONS)}


def model_ready(service: Service, name: str, version: str = "") -> bool:
    """Whether a model is served; false for unknown ones."""
    try:
        service.manifest(name, version)
    except ModelNotFoundError:
        return False
    return True


def model_metadata(service: Service, name: str, version: str = "") -> Json:
    """Describes the tensors of all of a model's tasks, without duplicate names.

    Raises:
        ModelNotFoundError: no such model is served.
    """
    manifest = service.manifest(name, version)
    return {
        "name": manifest.name,
        "versions": [
            info.version
            for info in service.list_models()
            if info.name == manifest.name and info.state == State.READY
        ],
        "platform": PLATFORM,
        "inputs": [_tensor(spec) for spec in _inputs(manifest)],
        "outputs": [_tensor(spec) for spec in _outputs(manifest)],
    }


def model_config(service: Service, name: str, version: str = "") -> Json:
    """The configuration of a model. Raises ``ModelNotFoundError`` if it is not served."""
    manifest = service.manifest(name, version)
    tasks = tasks_of(manifest)
    generates = not GENERATIVE.isdisjoint(tasks)
    batching = {}
    if generates:
        batching = {
            "priority_levels": PRIORITY_LEVELS,
            "default_priority_level": DEFAULT_PRIORITY_LEVEL,
        }
    is_cpu = manifest.device == Device.CPU
    return {
        "name": manifest.name,
        "platform": PLATFORM,
        "backend": BACKEND,
        "max_batch_size": 0,
        "input": [
            _declared(spec) | {"optional": _is_optional(manifest, spec)}
            for spec in _inputs(manifest)
        ],
        "output": [_declared(spec) for spec in _outputs(manifest)],
        "dynamic_batching": batching,
        "instance_group": [
            {"name": manifest.name, "count": 1, "kind": "KIND_CPU" if is_cpu else "KIND_GPU"}
        ],
        "parameters": {"tasks": {"string_value": ",".join(tasks)}},
        "model_transaction_policy": {"decoupled": generates},
    }


def repository_index(service: Service, *, ready: bool) -> list[Json]:
    """Every version of every model, or only those that are ready."""
    return [
        {
            "name": info.name,
            "version": info.version,
            "state": _STATES[info.state],
            "reason": info.failure,
        }
        for info in service.list_models()
        if info.state == State.READY or not ready
    ]


def statistics(service: Service, name: str = "", version: str = "") -> Json:
    """Statistics of one model or of all, counted over all versions of a model.

    Raises:
        ModelNotFoundError: no such model is served.
    """
    if name:
        manifest = service.manifest(name, version)
        served = {manifest.name: manifest.version}
    else:
        served = {info.name: info.version for info in _ready(service)}
    return {
        "model_stats": [
            _model_statistics(service, model, newest) for model, newest in served.items()
        ]
    }


def _ready(service: Service) -> list[ModelInfo]:
    """The models that are served, older versions first."""
    return [info for info in service.list_models() if info.state == State.READY]


def _model_statistics(service: Service, name: str, version: str) -> Json:
    found = service.statistics(name)
    return {
        "name": name,
        "version": version,
        "last_inference": round(found.last_call * 1000),
        "inference_count": found.compute.count,
        "execution_count": found.num_runs,
        "inference_stats": {
            "success": _duration(found.succeeded),
            "fail": _duration(found.failed),
            "queue": _duration(found.queue),
            # Triton's perf_analyzer requires equal counts of the three compute phases.
            "compute_input": _duration(Total(found.compute.count)),
            "compute_infer": _duration(found.compute),
            "compute_output": _duration(Total(found.compute.count)),
            "cache_hit": _duration(Total()),
            "cache_miss": _duration(Total()),
        },
        "batch_stats": [],
    }


def _duration(total: Total) -> Json:
    return {"count": total.count, "ns": max(round(total.seconds * 1e9), 0)}


def _is_optional(manifest: Manifest, spec: TensorSpec) -> bool:
    """Whether at least one of the model's tasks does not require this input."""
    return any(
        spec.name not in signature_of(task, manifest).required_inputs for task in tasks_of(manifest)
    )


def _inputs(manifest: Manifest) -> list[TensorSpec]:
    return _union(signature_of(task, manifest).inputs for task in tasks_of(manifest))


def _outputs(manifest: Manifest) -> list[TensorSpec]:
    return _union(signature_of(task, manifest).outputs for task in tasks_of(manifest))


def _union(groups: Iterable[Iterable[TensorSpec]]) -> list[TensorSpec]:
    """The specs of all tasks; if several have the same name, the first task's."""
    found: dict[str, TensorSpec] = {}
    for group in groups:
        for spec in group:
            found.setdefault(spec.name, spec)
    return list(found.values())


def _tensor(spec: TensorSpec) -> Json:
    return {"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)}


def _declared(spec: TensorSpec) -> Json:
    kind = "TYPE_STRING" if spec.datatype == BYTES else f"TYPE_{spec.datatype}"
    return {"name": spec.name, "data_type": kind, "dims": list(spec.shape)}
