"""``inference.GRPCInferenceService``: the Open Inference Protocol, version 2."""

from collections.abc import AsyncIterator
from typing import Any, NoReturn, TypeVar

import grpc
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message

from protos.inference import open_inference_pb2 as pb
from protos.inference import open_inference_pb2_grpc
from server.errors import InvalidArgumentError
from server.frontends.grpc.calls import rpc_scope
from server.frontends.grpc.context import Context
from server.frontends.grpc.oip_infer import InferCalls
from server.frontends.oip import models
from server.frontends.oip.messages import NO_LOG_SETTINGS, NO_SHARED_MEMORY, NO_TRACE_SETTINGS
from server.service.service import Service

OPEN_INFERENCE = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name

Response = TypeVar("Response", bound=Message)


def _refusing(reason: str) -> Any:
    async def refuse(_: Any, request: Message, context: Context) -> None:
        del request
        await _unimplemented(context, reason)

    return refuse


async def _unimplemented(context: Context, reason: str) -> NoReturn:
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, reason)


class OpenInferenceServicer(open_inference_pb2_grpc.GRPCInferenceServiceServicer):
    """The handlers of the main listener (inference) or of the admin listener (loading models).

    Args:
        service: handles the calls.
        is_admin: whether this is the admin listener.
    """

    def __init__(self, service: Service, *, is_admin: bool) -> None:
        self._service = service
        self._is_admin = is_admin
        self._calls = InferCalls(service)

    async def ServerLive(self, request: Any, context: Context) -> pb.ServerLiveResponse:
        async with rpc_scope(self._service, "ServerLive", request, context):
            return pb.ServerLiveResponse(live=self._service.is_live)

    async def ServerReady(self, request: Any, context: Context) -> pb.ServerReadyResponse:
        async with rpc_scope(self._service, "ServerReady", request, context):
            return pb.ServerReadyResponse(ready=self._service.is_ready)

    async def ModelReady(
        self, request: pb.ModelReadyRequest, context: Context
    ) -> pb.ModelReadyResponse:
        async with rpc_scope(self._service, "ModelReady", request, context):
            ready = models.model_ready(self._service, request.name, request.version)
            return pb.ModelReadyResponse(ready=ready)

    async def ServerMetadata(self, request: Any, context: Context) -> pb.ServerMetadataResponse:
        async with rpc_scope(self._service, "ServerMetadata", request, context):
            return _message(models.server_metadata(), pb.ServerMetadataResponse)

    async def ModelMetadata(
        self, request: pb.ModelMetadataRequest, context: Context
    ) -> pb.ModelMetadataResponse:
        async with rpc_scope(self._service, "ModelMetadata", request, context):
            found = models.model_metadata(self._service, request.name, request.version)
            return _message(found, pb.ModelMetadataResponse)

    async def ModelConfig(
        self, request: pb.ModelConfigRequest, context: Context
    ) -> pb.ModelConfigResponse:
        async with rpc_scope(self._service, "ModelConfig", request, context):
            found = models.model_config(self._service, request.name, request.version)
            return _message({"config": found}, pb.ModelConfigResponse)

    async def ModelStatistics(
        self, request: pb.ModelStatisticsRequest, context: Context
    ) -> pb.ModelStatisticsResponse:
        async with rpc_scope(self._service, "ModelStatistics", request, context):
            found = models.statistics(self._service, request.name, request.version)
            return _message(found, pb.ModelStatisticsResponse)

    async def ModelInfer(
        self, request: pb.ModelInferRequest, context: Context
    ) -> pb.ModelInferResponse:
        if self._is_admin:
            await _unimplemented(context, "inference is on the main address")
        return await self._calls.infer(request, context)

    async def ModelStreamInfer(  # type: ignore[override]
        self, request_iterator: AsyncIterator[pb.ModelInferRequest], context: Context
    ) -> None:
        if self._is_admin:
            await _unimplemented(context, "inference is on the main address")
        await self._calls.stream(request_iterator, context)

    async def RepositoryIndex(
        self, request: pb.RepositoryIndexRequest, context: Context
    ) -> pb.RepositoryIndexResponse:
        async with rpc_scope(self._service, "RepositoryIndex", request, context):
            index = models.repository_index(self._service, ready=request.ready)
            return _message({"models": index}, pb.RepositoryIndexResponse)

    async def RepositoryModelLoad(
        self, request: pb.RepositoryModelLoadRequest, context: Context
    ) -> pb.RepositoryModelLoadResponse:
        await self._check_admin(context)
        async with rpc_scope(self._service, "RepositoryModelLoad", request, context):
            if request.parameters:
                raise InvalidArgumentError(
                    "parameters", "a bundle is loaded as it is: no parameters are supported"
                )
            name = request.model_name or request.repository_name
            await self._service.load_model(name)
            return pb.RepositoryModelLoadResponse(model_name=name, isLoaded=True)

    async def RepositoryModelUnload(
        self, request: pb.RepositoryModelUnloadRequest, context: Context
    ) -> pb.RepositoryModelUnloadResponse:
        await self._check_admin(context)
        async with rpc_scope(self._service, "RepositoryModelUnload", request, context):
            name = request.model_name or request.repository_name
            await self._service.unload_model(name)
            return pb.RepositoryModelUnloadResponse(model_name=name, isUnloaded=True)

    SystemSharedMemoryStatus = _refusing(NO_SHARED_MEMORY)
    SystemSharedMemoryRegister = _refusing(NO_SHARED_MEMORY)
    SystemSharedMemoryUnregister = _refusing(NO_SHARED_MEMORY)
    CudaSharedMemoryStatus = _refusing(NO_SHARED_MEMORY)
    CudaSharedMemoryRegister = _refusing(NO_SHARED_MEMORY)
    CudaSharedMemoryUnregister = _refusing(NO_SHARED_MEMORY)
    TraceSetting = _refusing(NO_TRACE_SETTINGS)
    LogSettings = _refusing(NO_LOG_SETTINGS)

    async def _check_admin(self, context: Context) -> None:
        if not self._is_admin:
            await _unimplemented(context, "models are loaded and unloaded on the admin address")


def _message(found: models.Json, kind: type[Response]) -> Response:
    """Converts a JSON object to the message with the same field names."""
    return ParseDict(found, kind())
