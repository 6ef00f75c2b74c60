"""How the clients connect."""

from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio

DEFAULT_TARGET = "localhost:50051"
DEFAULT_ADMIN_TARGET = "localhost:50052"

# Responses grow with the batch; the server bounds the batch, so the client does not.
CHANNEL_OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


@dataclass(frozen=True, kw_only=True, slots=True)
class Security:
    """How a client knows its server, and how the server knows its client.

    ``ca_file``: certificates (PEM) of who vouches for the server; with it, or with ``tls`` and
    the machine's own, the connection is encrypted. ``certificate_file`` and ``key_file`` are
    the client's own, for a server that asks for them. ``token`` goes with every call: without
    TLS anybody on the way can read it.

    Files are read when a client is made: ``OSError`` says which cannot be.
    """

    tls: bool = False
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    token: str | None = None

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What goes with every call."""
        return () if self.token is None else (("authorization", f"Bearer {self.token}"),)

    def channel(self, target: str) -> grpc.Channel:
        """A blocking channel."""
        credentials = self._credentials()
        if credentials is None:
            return grpc.insecure_channel(target, options=CHANNEL_OPTIONS)
        return grpc.secure_channel(target, credentials, options=CHANNEL_OPTIONS)

    def aio_channel(self, target: str) -> grpc.aio.Channel:
        """A channel of the running event loop."""
        credentials = self._credentials()
        if credentials is None:
            return grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS)
        return grpc.aio.secure_channel(target, credentials, options=CHANNEL_OPTIONS)

    def _credentials(self) -> grpc.ChannelCredentials | None:
        files = (self.ca_file, self.key_file, self.certificate_file)
        if not self.tls and files == (None, None, None):
            return None
        contents = (None if file is None else file.read_bytes() for file in files)
        return grpc.ssl_channel_credentials(*contents)


OPEN = Security()
"""Neither TLS nor a token."""
