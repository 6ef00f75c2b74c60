"""``grpc.health.v1``: the server, its services, and each model."""

import asyncio

from grpc_health.v1.health_pb2 import HealthCheckResponse

from protos.triune.v1 import inference_pb2, models_pb2
from server.frontends.grpc.health_watch import HealthServicer
from server.models.registry import Registry

INFERENCE = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"].full_name
MODELS = models_pb2.DESCRIPTOR.services_by_name["ModelService"].full_name


class Health:
    """What is SERVING: "", the services, and ``triune.v1.InferenceService/NAME`` of each model.

    A model that is gone is NOT_SERVING; so is everything while the server drains.
    """

    def __init__(self) -> None:
        self.servicer = HealthServicer()
        self._lock = asyncio.Lock()
        self._models: frozenset[str] = frozenset()
        self._latest = Registry()

    async def open(self) -> None:
        """The server takes calls."""
        for name in ("", INFERENCE, MODELS):
            await self._set(name, is_serving=True)

    async def follow(self, registry: Registry) -> None:
        """A model came or went. Told out of order, the last word counts."""
        self._latest = registry
        async with self._lock:
            names = self._latest.names
            for name in sorted(names ^ self._models):
                await self._set(f"{INFERENCE}/{name}", is_serving=name in names)
            self._models = names

    async def close(self) -> None:
        """Nothing is SERVING any more."""
        await self.servicer.enter_graceful_shutdown()

    async def _set(self, service: str, *, is_serving: bool) -> None:
        status = HealthCheckResponse.SERVING if is_serving else HealthCheckResponse.NOT_SERVING
        await self.servicer.set(service, status)
