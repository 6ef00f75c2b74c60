"""What an operator asks of a server: at its own address, which ``--admin`` sets."""

from types import TracebackType
from typing import Self

from client import responses, types
from client.channel import DEFAULT_ADMIN_TARGET, OPEN, Security
from client.errors import typed_errors
from protos.triune.v1 import admin_pb2, admin_pb2_grpc


class AdminClient:
    """Loads and unloads models of the server whose admin address is ``target``.

    A call that fails raises ``client.errors.TriuneError``. ``timeout_seconds`` bounds each
    call; a load goes on in the server when its caller has left.
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
        """Ends the connection."""
        self._channel.close()

    def load_model(self, model: str, *, version: str = "") -> types.Model:
        """Loads a bundle, or loads it again; returns when it is served.

        FAILED_PRECONDITION says why it is refused; what was served before still is.
        """
        request = admin_pb2.LoadModelRequest(model=model, version=version)
        with typed_errors():
            response = self._stub.LoadModel(
                request, timeout=self._timeout_seconds, metadata=self._metadata
            )
        return responses.model(response)

    def unload_model(self, model: str, *, version: str = "") -> tuple[str, ...]:
        """Offers a model to no new call. Returns the versions that were served until now."""
        request = admin_pb2.UnloadModelRequest(model=model, version=version)
        with typed_errors():
            response = self._stub.UnloadModel(
                request, timeout=self._timeout_seconds, metadata=self._metadata
            )
        return tuple(response.versions)
