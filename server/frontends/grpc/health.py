"""Maintains the ``grpc.health.v1`` status of the server, its services and each model."""

import asyncio

from grpc_health.v1.health_pb2 import HealthCheckResponse

from protos.triune.v1 import inference_pb2, models_pb2
from server.frontends.grpc.health_watch import HealthServicer
from server.frontends.grpc.oip import OPEN_INFERENCE

INFERENCE = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"].full_name
MODELS = models_pb2.DESCRIPTOR.services_by_name["ModelService"].full_name


class Health:
    """Sets the status of "", of each service, and of ``triune.v1.InferenceService/NAME`` per model.

    An unloaded model is NOT_SERVING. While the server drains, everything is NOT_SERVING except
    ``liveness``, which is NOT_SERVING only if the process must be replaced.
    """

    def __init__(self) -> None:
        self.servicer = HealthServicer()
        self._lock = asyncio.Lock()
        self._announced: frozenset[str] = frozenset()
        self._latest: frozenset[str] = frozenset()

    async def set_serving(self) -> None:
        """Sets the server and its services to SERVING."""
        for name in ("", INFERENCE, MODELS, OPEN_INFERENCE):
            await self._set(name, is_serving=True)

    async def set_models(self, names: frozenset[str]) -> None:
        """Sets the names of the served models. Of concurrent calls, the last one wins."""
        self._latest = names
        async with self._lock:
            for name in sorted(self._latest ^ self._announced):
                await self._set(f"{INFERENCE}/{name}", is_serving=name in self._latest)
            self._announced = self._latest

    async def set_not_serving(self, *, is_live: bool) -> None:
        """Sets every status to NOT_SERVING, for good; ``liveness`` only if not ``is_live``."""
        self.servicer.is_live = is_live
        await self.servicer.enter_graceful_shutdown()

    async def _set(self, service: str, *, is_serving: bool) -> None:
        status = HealthCheckResponse.SERVING if is_serving else HealthCheckResponse.NOT_SERVING
        await self.servicer.set(service, status)
