"""TLS of the HTTP listener. It uses the same files as the gRPC listeners."""

import logging
import ssl

from server.config import TlsFiles
from server.errors import StartupError
from server.file_changes import FileChanges

log = logging.getLogger(__name__)


class TlsContext:
    """The TLS context, reloaded at a handshake when its files have changed.

    If changed files are invalid, for example a new certificate with the old key, the previous
    certificate stays in use.

    Raises:
        StartupError: the files are invalid at startup.
    """

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        paths = (files.certificate, files.key, files.client_ca)
        self._changes = FileChanges(*(path for path in paths if path is not None))
        try:
            self.first = self._current = self._read()
        except (OSError, ssl.SSLError) as error:
            names = ", ".join(str(path) for path in paths if path is not None)
            raise StartupError(f"TLS certificate: {error}: {names}") from error
        self.first.sni_callback = self._choose

    def _choose(self, connection: ssl.SSLObject, *_: object) -> None:
        """OpenSSL calls this at each handshake, with or without a server name."""
        if self._changes.detected():
            try:
                self._current = self._read()
            except (OSError, ssl.SSLError) as error:
                log.error("keeping the previous certificate: %s", error)
            else:
                log.info("reloaded the certificate")
        if self._current is not self.first:
            connection.context = self._current

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self._files.certificate, self._files.key)
        context.set_alpn_protocols(["http/1.1"])
        if self._files.client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self._files.client_ca)
        return context
