"""``AdminService``: models come and go while others are served."""

import asyncio

from protos.triune.v1 import admin_pb2 as pb
from protos.triune.v1 import admin_pb2_grpc
from server.frontends.grpc.calls import Context, guarded
from server.frontends.grpc.models import describe
from server.service.context import Services


class AdminServicer(admin_pb2_grpc.AdminServiceServicer):
    """Asks the catalog. A caller that leaves does not end what it began."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def LoadModel(
        self, request: pb.LoadModelRequest, context: Context
    ) -> pb.LoadModelResponse:
        # Without the model's name: the call does not use what it replaces.
        catalog, metrics = self._services.catalog, self._services.metrics
        async with guarded("LoadModel", "", context, catalog, metrics):
            loading = asyncio.ensure_future(catalog.load(request.model, request.version))
            model = await asyncio.shield(loading)
            entry = catalog.registry.describe(request.model, model.manifest.version)
            return pb.LoadModelResponse(model=describe(entry, self._services.config))

    async def UnloadModel(
        self, request: pb.UnloadModelRequest, context: Context
    ) -> pb.UnloadModelResponse:
        catalog, metrics = self._services.catalog, self._services.metrics
        async with guarded("UnloadModel", "", context, catalog, metrics):
            versions = await catalog.unload(request.model, request.version)
            return pb.UnloadModelResponse(versions=versions)
