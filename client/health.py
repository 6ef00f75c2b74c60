"""Checks a server's health with the standard ``grpc.health.v1`` service."""

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from client.channel import OPEN, Security
from client.errors import TriuneError, typed_errors


def status(target: str, service: str, timeout_seconds: float, security: Security = OPEN) -> str:
    """Returns SERVING, NOT_SERVING or UNKNOWN. An empty ``service`` is the whole server.

    Raises ``TriuneError``: UNAVAILABLE without a server, NOT_FOUND for an unknown service,
    DEADLINE_EXCEEDED after ``timeout_seconds``.
    """
    request = health_pb2.HealthCheckRequest(service=service)
    try:
        with security.channel(target) as channel, typed_errors():
            answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=timeout_seconds)
    except TriuneError as error:
        if error.code is not grpc.StatusCode.NOT_FOUND:
            raise
        # The standard service sends no message.
        raise TriuneError(error.code, f"the server has no service {service!r}") from error
    name: str = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    return name
