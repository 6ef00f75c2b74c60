"""Connections to a server: address, TLS and bearer token."""

import re
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio

DEFAULT_TARGET = "localhost:50051"
DEFAULT_ADMIN_TARGET = "localhost:50052"

# Responses grow with the batch. The server limits the batch, so the client sets no limit.
CHANNEL_OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


@dataclass(frozen=True, kw_only=True, slots=True)
class Security:
    """How client and server authenticate each other.

    Args:
        tls: use TLS; the server's certificate is verified with the system's CAs.
        ca_file: CA certificates (PEM) that verify the server; implies ``tls``.
        certificate_file, key_file: the client's own certificate and key (PEM), for mutual TLS.
        token: bearer token to send with every call. Without TLS it travels in clear text.

    Files are read when a client is created, which raises ``OSError`` for an unreadable one and
    ``ValueError`` for one that is not PEM.

    Raises:
        ValueError: a certificate without its key, or the reverse; or the token has characters that
            a header cannot have.
    """

    tls: bool = False
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    token: str | None = None

    def __post_init__(self) -> None:
        # gRPC ends the process if one of the two is missing.
        if (self.certificate_file is None) != (self.key_file is None):
            given, missing = (
                ("certificate", "key") if self.key_file is None else ("key", "certificate")
            )
            raise ValueError(f"a TLS client {given} also needs its {missing}")
        if self.token is not None and not re.fullmatch("[!-~]*", self.token):
            raise ValueError("the bearer token is not one line of visible ASCII characters")

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The gRPC metadata to send with every call."""
        return () if self.token is None else (("authorization", f"Bearer {self.token}"),)

    def channel(self, target: str) -> grpc.Channel:
        """A blocking channel."""
        credentials = self._credentials()
        if credentials is None:
            return grpc.insecure_channel(target, options=CHANNEL_OPTIONS)
        return grpc.secure_channel(target, credentials, options=CHANNEL_OPTIONS)

    def aio_channel(self, target: str) -> grpc.aio.Channel:
        """A channel on the running event loop."""
        credentials = self._credentials()
        if credentials is None:
            return grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS)
        return grpc.aio.secure_channel(target, credentials, options=CHANNEL_OPTIONS)

    def _credentials(self) -> grpc.ChannelCredentials | None:
        files = (self.ca_file, self.key_file, self.certificate_file)
        if not self.tls and files == (None, None, None):
            return None
        kinds = (b"CERTIFICATE", b"PRIVATE KEY", b"CERTIFICATE")
        return grpc.ssl_channel_credentials(*map(_read_pem, files, kinds))


def _read_pem(file: Path | None, kind: bytes) -> bytes | None:
    """The contents of a file. Raises ``ValueError`` if it has no PEM block of this kind."""
    if file is None:
        return None
    contents = file.read_bytes()
    if kind + b"-----" not in contents:
        raise ValueError(f"{file}: no {kind.decode().lower()} in PEM format")
    return contents


OPEN = Security()
"""Neither TLS nor a token."""
