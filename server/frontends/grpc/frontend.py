"""The gRPC front end: the listeners, their services, and health."""

import asyncio
import time
from dataclasses import dataclass

import grpc.aio
from grpc_health.v1 import health as health_protocol
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from protos.inference import open_inference_pb2_grpc
from protos.triune.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    inference_pb2_grpc,
    models_pb2_grpc,
)
from server.addresses import check_free
from server.config import ServerConfig
from server.frontends.grpc.draining import DrainingInterceptor
from server.frontends.grpc.health import INFERENCE, MODELS, Health
from server.frontends.grpc.inference import InferenceServicer
from server.frontends.grpc.listeners import (
    check_admin_access,
    credentials_of,
    make_server,
    open_port,
)
from server.frontends.grpc.malformed import MalformedMessageInterceptor
from server.frontends.grpc.models import AdminServicer, ModelServicer
from server.frontends.grpc.oip import OPEN_INFERENCE, OpenInferenceServicer
from server.service.access_tokens import AccessTokens
from server.service.service import Service

_SERVICES = (
    INFERENCE,
    MODELS,
    OPEN_INFERENCE,
    health_protocol.SERVICE_NAME,
    reflection.SERVICE_NAME,
)
_ADMIN_SERVICES = (
    admin_pb2.DESCRIPTOR.services_by_name["AdminService"].full_name,
    MODELS,
    OPEN_INFERENCE,
    reflection.SERVICE_NAME,
)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A listener's address, tokens and TLS credentials."""

    address: str
    tokens: AccessTokens | None
    credentials: grpc.ServerCredentials | None


class GrpcFrontend:
    """Runs a listener for inference, and one for admin calls if its address is configured.

    Args:
        config: the server's configuration.

    Raises:
        StartupError: the admin address is reachable from the network without authentication.
    """

    def __init__(self, config: ServerConfig) -> None:
        check_admin_access(config)
        self._config = config
        self._health = Health()
        self._draining = DrainingInterceptor()
        self._prepared: list[_Prepared] = []
        self._listeners: list[grpc.aio.Server] = []
        self.port = 0
        self.admin_port: int | None = None

    def prepare(self) -> None:
        """Checks the addresses and reads tokens and certificates. Call once, before ``start``.

        Raises:
            StartupError: an address, a certificate or a token file cannot be used.
        """
        config = self._config
        given = [(config.listen, config.tokens)]
        if config.admin is not None:
            given.append((config.admin, config.admin_token_file))
        for address, tokens in given:
            check_free(address)
            self._prepared.append(
                _Prepared(
                    address,
                    None if tokens is None else AccessTokens(tokens),
                    None if config.tls is None else credentials_of(config.tls),
                )
            )

    async def start(self, service: Service) -> None:
        """Opens the listeners. Health stays NOT_SERVING until :meth:`set_serving`.

        Raises:
            StartupError: an address cannot be used.
        """
        prepared, *more = self._prepared
        main, self.port = self._listener(service, prepared, _SERVICES)
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(InferenceServicer(service), main)
        health_pb2_grpc.add_HealthServicer_to_server(self._health.servicer, main)
        for prepared in more:
            admin, self.admin_port = self._listener(service, prepared, _ADMIN_SERVICES)
            admin_pb2_grpc.add_AdminServiceServicer_to_server(AdminServicer(service), admin)
        for listener in self._listeners:
            await listener.start()

    async def set_models(self, names: frozenset[str]) -> None:
        """Sets the names of the served models, each of which has its own health status."""
        await self._health.set_models(names)

    async def set_serving(self) -> None:
        """Sets the health status to SERVING."""
        await self._health.set_serving()

    async def set_not_serving(self, *, is_live: bool) -> None:
        """Sets the health status to NOT_SERVING and ends the calls that watch it.

        The status of ``liveness`` stays SERVING if ``is_live``.
        """
        await self._health.set_not_serving(is_live=is_live)

    async def drain(self) -> None:
        """Refuses new calls at once, and cancels running calls after the grace period."""
        end = time.monotonic() + self._config.grace_seconds
        await self._draining.refuse_until_quiet(self._config.grace_seconds)
        left = max(end - time.monotonic(), 0.0)
        await asyncio.gather(*(listener.stop(left) for listener in self._listeners))

    def _listener(
        self, service: Service, prepared: _Prepared, names: tuple[str, ...]
    ) -> tuple[grpc.aio.Server, int]:
        interceptors = (self._draining, MalformedMessageInterceptor(service))
        server = make_server(self._config, prepared.tokens, interceptors)
        models_pb2_grpc.add_ModelServiceServicer_to_server(ModelServicer(service), server)
        open_inference = OpenInferenceServicer(service, is_admin=names is _ADMIN_SERVICES)
        open_inference_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(open_inference, server)
        reflection.enable_server_reflection(names, server)
        self._listeners.append(server)
        return server, open_port(server, prepared.address, prepared.credentials)
