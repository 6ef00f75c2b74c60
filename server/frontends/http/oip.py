"""The Open Inference Protocol, version 2, over HTTP: ``/v2/…``.

Models are loaded and unloaded on the gRPC admin address only.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.routing import BaseRoute

from server.errors import Code, ServeError
from server.frontends.http.body import json_decoder
from server.frontends.http.endpoint import Api, Call, Context, json_response
from server.frontends.http.event_stream import EventStream, event
from server.frontends.http.failures import Failure, UnsupportedCallError
from server.frontends.http.images import Images
from server.frontends.http.oip_codec import (
    InferBody,
    decode_generate,
    decode_infer,
    encode_infer,
    generated,
)
from server.frontends.oip import models
from server.frontends.oip.infer import Inference
from server.frontends.oip.messages import (
    NO_LOG_SETTINGS,
    NO_SHARED_MEMORY,
    NO_TRACE_SETTINGS,
    InferRequest,
)
from server.frontends.oip.signatures import FILE_INPUTS
from server.frontends.oip.tensors import BYTES, InputTensor


class _ElsewhereError(ServeError):
    """The call is only available on another listener."""

    code = Code.FAILED_PRECONDITION

    def __init__(self) -> None:
        super().__init__("models are loaded and unloaded on the gRPC admin address")


# Triton's extensions that are refused, with the reason.
_UNSUPPORTED = {
    "/v2/trace/setting": NO_TRACE_SETTINGS,
    "/v2/models/{model}/trace/setting": NO_TRACE_SETTINGS,
    "/v2/logging": NO_LOG_SETTINGS,
    "/v2/systemsharedmemory/{call:path}": NO_SHARED_MEMORY,
    "/v2/cudasharedmemory/{call:path}": NO_SHARED_MEMORY,
}


class _IndexBody(msgspec.Struct):
    ready: bool = False


_decode_index_body = json_decoder(_IndexBody)


def routes(context: Context) -> list[BaseRoute]:
    """The routes, except ``/v2/health``, which is among the probes."""
    api = Api(context=context, error=_error)
    calls = _InferCalls(Inference(context.service))
    both = ("/v2/models/{model}", "/v2/models/{model}/versions/{version}")
    made: list[BaseRoute] = [
        api.get("/v2", _server),
        api.get("/v2/", _server),
        api.get("/v2/models/stats", _statistics),
        api.post("/v2/repository/index", _decode_index, _index),
        api.post("/v2/repository/models/{model}/load", _ignore_body, _refuse),
        api.post("/v2/repository/models/{model}/unload", _ignore_body, _refuse),
    ]
    for path in both:
        made += [
            api.get(path, _metadata),
            api.get(f"{path}/ready", _ready),
            api.get(f"{path}/config", _config),
            api.get(f"{path}/stats", _statistics),
            api.post(f"{path}/infer", decode_infer, calls.infer, model_of=_model),
            api.post(f"{path}/generate", decode_generate, calls.generate, model_of=_model),
            api.post(f"{path}/generate_stream", decode_generate, calls.stream, model_of=_model),
        ]
    for path, reason in _UNSUPPORTED.items():
        refuse = partial(_refuse_as, reason)
        made += [api.get(path, refuse), api.post(path, _ignore_body, refuse)]
    return made


class _InferCalls:
    """The handlers of the routes that run models."""

    def __init__(self, inference: Inference) -> None:
        self._inference = inference

    async def infer(self, call: Call[InferBody]) -> Response:
        request = _named(call, call.body.request)
        inputs = tuple([await _with_files(tensor, call) for tensor in request.inputs])
        response = await self._inference.infer(replace(request, inputs=inputs), call.caller)
        return await call.service.build(
            response.num_values, lambda: encode_infer(response, call.body), call.caller
        )

    async def generate(self, call: Call[InferRequest]) -> Response:
        response = await self._inference.infer(_named(call, call.body), call.caller)
        return await call.service.build(
            response.num_values, lambda: json_response(generated(response)), call.caller
        )

    async def stream(self, call: Call[InferRequest]) -> EventStream:
        return EventStream(self._events(call))

    async def _events(self, call: Call[InferRequest]) -> AsyncGenerator[bytes, None]:
        responses = self._inference.stream(_named(call, call.body), call.caller)
        async with aclosing(responses):
            async for response in responses:
                yield event(generated(response))


def _error(failure: Failure) -> Response:
    return json_response({"error": failure.message})


def _model(call: Call[Any]) -> str:
    return call.path_params["model"]


def _version(call: Call[Any]) -> str:
    return call.path_params.get("version", "")


def _named(call: Call[Any], request: InferRequest) -> InferRequest:
    """``request`` with the model and version from the path."""
    return replace(request, model=_model(call), version=_version(call))


async def _with_files(tensor: InputTensor, call: Call[Any]) -> InputTensor:
    """``tensor``, with image and audio files decoded from the base64 in JSON."""
    if tensor.name not in FILE_INPUTS or tensor.datatype != BYTES or tensor.raw is not None:
        return tensor
    encoded = Images(images=tensor.values, field=tensor.name, path=f"{tensor.name}[{{}}]")
    return replace(tensor, values=await encoded.files(call))


async def _server(_: Call[None]) -> Response:
    return json_response(models.server_metadata())


async def _metadata(call: Call[None]) -> Response:
    return json_response(models.model_metadata(call.service, _model(call), _version(call)))


async def _ready(call: Call[None]) -> Response:
    is_ready = models.model_ready(call.service, _model(call), _version(call))
    return json_response({"ready": is_ready}, 200 if is_ready else 400)


async def _config(call: Call[None]) -> Response:
    return json_response(models.model_config(call.service, _model(call), _version(call)))


async def _statistics(call: Call[None]) -> Response:
    name = call.path_params.get("model", "")
    return json_response(models.statistics(call.service, name, _version(call)))


async def _index(call: Call[_IndexBody]) -> Response:
    return json_response(models.repository_index(call.service, ready=call.body.ready))


def _decode_index(data: bytes, _: Headers) -> _IndexBody:
    return _decode_index_body(data) if data else _IndexBody()


def _ignore_body(_: bytes, __: Headers) -> None:
    """Ignores the body of calls that are always rejected."""


async def _refuse(_: Call[None]) -> Response:
    raise _ElsewhereError


async def _refuse_as(reason: str, _: Call[None]) -> Response:
    raise UnsupportedCallError(reason)
