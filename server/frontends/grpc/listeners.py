"""Creates gRPC listeners: addresses, TLS, tokens, and the limits of a connection."""

import ipaddress
import logging
import ssl
import threading
from collections.abc import Sequence

import grpc
import grpc.aio

from server.config import ServerConfig, TlsFiles
from server.errors import StartupError
from server.file_changes import FileChanges
from server.frontends.grpc.auth import BearerTokenInterceptor
from server.frontends.grpc.transport import CHANNEL_ARGUMENTS
from server.service.access_tokens import AccessTokens

log = logging.getLogger(__name__)


def make_server(
    config: ServerConfig,
    tokens: AccessTokens | None,
    interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
) -> grpc.aio.Server:
    """Makes a server without services. With ``tokens``, every call needs a valid token.

    ``interceptors`` see only calls that pass this check.
    """
    options: list[tuple[str, int]] = [
        *CHANNEL_ARGUMENTS,
        ("grpc.max_concurrent_streams", config.max_streams),
    ]
    if config.max_connection_seconds is not None:
        age, grace = config.max_connection_seconds, config.grace_seconds
        options.append(("grpc.max_connection_age_ms", round(age * 1000)))
        options.append(("grpc.max_connection_age_grace_ms", round(grace * 1000)))
    checks = list(interceptors)
    if tokens is not None:  # the first check, so that callers without a token learn nothing
        checks.insert(0, BearerTokenInterceptor(tokens))
    return grpc.aio.server(options=options, interceptors=checks)


def open_port(
    server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None
) -> int:
    """Listens on ``HOST:PORT`` or ``unix:PATH``; returns the port.

    Raises:
        StartupError: the address cannot be used.
    """
    try:
        if credentials is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise StartupError(f"cannot listen on {address}: {error}") from error


def check_admin_access(config: ServerConfig) -> None:
    """Raises ``StartupError`` if unauthenticated network clients could load and unload models."""
    address = config.admin
    is_guarded = config.admin_token_file is not None or (
        config.tls is not None and config.tls.client_ca is not None
    )
    if address is not None and not is_guarded and not _is_local(address):
        raise StartupError(
            f"admin address {address} is not a loopback address: "
            "it requires --admin-tokens, --tokens or --tls-client-ca"
        )


def _is_local(address: str) -> bool:
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def credentials_of(tls: TlsFiles) -> grpc.ServerCredentials:
    """TLS credentials, reloaded when their files change. Raises ``StartupError`` if invalid."""
    certificates = _Certificates(tls)
    return grpc.dynamic_ssl_server_credentials(
        # The type stubs do not allow None, which means no change.
        certificates.first,
        certificates.newer,  # type: ignore[arg-type]
        tls.client_ca is not None,
    )


class _Certificates:
    """The current certificate. Its files are checked at each TLS handshake.

    If changed files are invalid, for example a new certificate with the old key, the previous
    certificate stays in use.

    Raises:
        StartupError: the files are invalid at startup.
    """

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        paths = (files.certificate, files.key, files.client_ca)
        self._changes = FileChanges(*(path for path in paths if path is not None))
        # gRPC calls `newer` from several threads.
        self._lock = threading.Lock()
        try:
            self.first = self._read()
        except (OSError, ssl.SSLError) as error:
            names = ", ".join(str(path) for path in paths if path is not None)
            raise StartupError(f"TLS certificate: {error}: {names}") from error

    def newer(self) -> grpc.ServerCertificateConfiguration | None:
        """The new certificate; ``None`` if the files did not change or are invalid."""
        with self._lock:
            if not self._changes.detected():
                return None
            try:
                read = self._read()
            except (OSError, ssl.SSLError) as error:
                log.error("keeping the previous certificate: %s", error)
                return None
        log.info("reloaded the certificate")
        return read

    def _read(self) -> grpc.ServerCertificateConfiguration:
        files = self._files
        # Raises if certificate and key do not match.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(files.certificate, files.key)
        pair = (files.key.read_bytes(), files.certificate.read_bytes())
        ca = None
        if files.client_ca is not None:
            ssl.create_default_context(cafile=files.client_ca)
            ca = files.client_ca.read_bytes()
        return grpc.ssl_server_certificate_configuration([pair], ca)
