"""The client of the admin service, which loads and unloads models."""

from types import TracebackType
from typing import Self

from client import responses, types
from client.channel import DEFAULT_ADMIN_TARGET, OPEN, Security
from client.errors import typed_errors
from protos.triune.v1 import admin_pb2, admin_pb2_grpc


class AdminClient:
    """Loads and unloads models of a server.

    Args:
        target: the server's admin address (its option ``--admin``), "host:port".
        timeout_seconds: limit of each call; by default none. A load that times out continues
            in the server.
        security: TLS and bearer token; by default neither.

    Raises:
        TriuneError: by every call that fails.
    """

    def __init__(
        self,
        target: str = DEFAULT_ADMIN_TARGET,
        *,
        timeout_seconds: float | None = None,
        security: Security = OPEN,
    ) -> None:
        self._channel = security.channel(target)
        self._metadata = security.metadata
        self._stub = admin_pb2_grpc.AdminServiceStub(self._channel)
        self._timeout_seconds = timeout_seconds

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection."""
        self._channel.close()

    def load_model(self, model: str, *, version: str = "") -> types.Model:
        """Loads or reloads a bundle; returns when it is served.

        A bundle that cannot be loaded raises FAILED_PRECONDITION with the reason; the version
        that was served before stays served. An empty ``version`` means the newest.
        """
        request = admin_pb2.LoadModelRequest(model=model, version=version)
        with typed_errors():
            response = self._stub.LoadModel(
                request, timeout=self._timeout_seconds, metadata=self._metadata
            )
        return responses.model(response)

    def unload_model(self, model: str, *, version: str = "") -> tuple[str, ...]:
        """Unloads a model: new calls fail, running calls finish. Returns the unloaded versions.

        An empty ``version`` means all versions.
        """
        request = admin_pb2.UnloadModelRequest(model=model, version=version)
        with typed_errors():
            response = self._stub.UnloadModel(
                request, timeout=self._timeout_seconds, metadata=self._metadata
            )
        return tuple(response.versions)
