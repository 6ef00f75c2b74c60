"""``ModelService`` and ``AdminService``: list, describe, load and unload models."""

from protos.triune.v1 import admin_pb2, admin_pb2_grpc, models_pb2_grpc
from protos.triune.v1 import models_pb2 as pb
from server.frontends.grpc.calls import rpc_scope
from server.frontends.grpc.codec import encode
from server.frontends.grpc.context import Context
from server.service.service import Service


class ModelServicer(models_pb2_grpc.ModelServiceServicer):
    """The handlers of ``ModelService``."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def ListModels(
        self, request: pb.ListModelsRequest, context: Context
    ) -> pb.ListModelsResponse:
        async with rpc_scope(self._service, "ListModels", request, context):
            return pb.ListModelsResponse(
                models=[encode(info, pb.Model) for info in self._service.list_models()]
            )

    async def GetModel(self, request: pb.GetModelRequest, context: Context) -> pb.GetModelResponse:
        async with rpc_scope(self._service, "GetModel", request, context):
            info = self._service.get_model(request.model, request.version)
            return pb.GetModelResponse(model=encode(info, pb.Model))


class AdminServicer(admin_pb2_grpc.AdminServiceServicer):
    """The handlers of ``AdminService``."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def LoadModel(
        self, request: admin_pb2.LoadModelRequest, context: Context
    ) -> admin_pb2.LoadModelResponse:
        # This call does not use the model that it replaces, so it must not keep it loaded.
        async with rpc_scope(self._service, "LoadModel", request, context, keeps_model=False):
            info = await self._service.load_model(request.model, request.version)
            return admin_pb2.LoadModelResponse(model=encode(info, pb.Model))

    async def UnloadModel(
        self, request: admin_pb2.UnloadModelRequest, context: Context
    ) -> admin_pb2.UnloadModelResponse:
        async with rpc_scope(self._service, "UnloadModel", request, context, keeps_model=False):
            versions = await self._service.unload_model(request.model, request.version)
            return admin_pb2.UnloadModelResponse(versions=versions)
