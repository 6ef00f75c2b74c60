"""Calls of a server's HTTP routes, with retries of those it refuses."""

import http.client
import json
import ssl
import threading
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import grpc
import tenacity

from client.channel import OPEN, Security
from client.errors import MAX_DELAY_SECONDS, TriuneError
from client.retry import RetryPolicy, controls

DEFAULT_URL = "http://localhost:8080"
_REFUSED = {
    HTTPStatus.TOO_MANY_REQUESTS: grpc.StatusCode.RESOURCE_EXHAUSTED,
    HTTPStatus.SERVICE_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
}


@dataclass(frozen=True, slots=True)
class Answer:
    """A response: ``body`` is what its JSON says, or its text if it is none."""

    status: int
    request_id: str
    body: Any


class _RefusedError(TriuneError):
    def __init__(self, answer: Answer, retry_delay_seconds: float | None) -> None:
        code = _REFUSED[HTTPStatus(answer.status)]
        super().__init__(code, str(answer.body), retry_delay_seconds=retry_delay_seconds)
        self.answer = answer


class HttpCalls:
    """Posts JSON to the server at ``url``, such as ``https://server.example:8080``. Thread-safe.

    Each thread has a connection of its own, which is kept.

    Args:
        url: scheme, host and port.
        timeout_seconds: longest wait for data of a response; by default none.
        retry: whether refused calls, and those without a connection, are repeated.
        security: TLS (only of ``https``) and bearer token.

    Raises:
        ValueError: ``url`` has another form.
        OSError: a file of ``security`` cannot be read.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        timeout_seconds: float | None = None,
        retry: RetryPolicy | None = None,
        security: Security = OPEN,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
            raise ValueError(f"{url!r} is not http://HOST:PORT or https://HOST:PORT")
        self._url, self._host, self._port = url, parts.hostname, parts.port
        self._timeout_seconds = timeout_seconds
        self._controls = controls(retry or RetryPolicy())
        self._headers = {"content-type": "application/json", **dict(security.metadata)}
        self._tls: ssl.SSLContext | None = None
        if parts.scheme == "https":
            self._tls = ssl.create_default_context(cafile=security.ca_file)
            if security.certificate_file is not None:
                self._tls.load_cert_chain(security.certificate_file, security.key_file)
        self._threads = threading.local()

    def connect(self) -> None:
        """Opens a connection, without retries.

        Raises:
            TriuneError: UNAVAILABLE: nobody answers at that address.
        """
        try:
            self._connection().connect()
        except OSError as error:
            raise self._unavailable(error) from error

    def post(self, path: str, body: bytes) -> Answer:
        """The answer, of any status, of the last attempt.

        Raises:
            TriuneError: UNAVAILABLE: the server did not answer.
        """
        try:
            for attempt in tenacity.Retrying(**self._controls):
                with attempt:
                    answer = self._attempt(path, body)
        except _RefusedError as error:
            return error.answer
        return answer

    def _attempt(self, path: str, body: bytes) -> Answer:
        connection = self._connection()
        try:
            connection.request("POST", path, body, self._headers)
            response = connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()  # the next request opens it again
            raise self._unavailable(error) from error
        answer = Answer(response.status, response.headers.get("x-request-id", ""), _value(content))
        if response.status in _REFUSED:
            raise _RefusedError(answer, _seconds(response.headers.get("retry-after-ms")))
        return answer

    def _unavailable(self, error: Exception) -> TriuneError:
        what = str(error) or type(error).__name__
        return TriuneError(grpc.StatusCode.UNAVAILABLE, f"{self._url}: {what}")

    def _connection(self) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection | None = getattr(self._threads, "connection", None)
        if connection is None:
            if self._tls is None:
                connection = http.client.HTTPConnection(
                    self._host, self._port, timeout=self._timeout_seconds
                )
            else:
                connection = http.client.HTTPSConnection(
                    self._host, self._port, timeout=self._timeout_seconds, context=self._tls
                )
            self._threads.connection = connection
        return connection


def _value(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return content.decode(errors="replace")


def _seconds(milliseconds: str | None) -> float | None:
    try:
        seconds = float(milliseconds or "") / 1000
    except ValueError:
        return None
    return seconds if 0 <= seconds <= MAX_DELAY_SECONDS else None
