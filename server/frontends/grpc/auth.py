"""Bearer tokens: every call but those of health needs one (RFC 6750)."""

import hashlib
import hmac
import logging
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from server.errors import StartupError, UnauthenticatedError
from server.file_changes import FileChanges
from server.frontends.grpc.context import Context
from server.frontends.grpc.identity import token_name
from server.frontends.grpc.status import metadata_of, status_of

log = logging.getLogger(__name__)

_HEALTH = "/grpc.health.v1.Health/"
_LINE = re.compile(r"(?:(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*):)?(?P<token>[A-Za-z0-9._~+/-]+=*)")
_SCHEME = re.compile(r"bearer +(?P<token>\S+) *", re.IGNORECASE)


class Tokens:
    """The tokens of a file, a line each: ``TOKEN`` or ``NAME:TOKEN``; ``#`` begins a comment.

    The file is read again when it changes. One that cannot be read, or has a line that is no
    token, changes nothing; an empty one lets nobody in. Several lines may have one name, for
    while a token is replaced. A token without a name has one made of its hash.

    Raises:
        StartupError: the file cannot be read at first.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changes = FileChanges(path)
        try:
            self._names = _parse(path)
        except (OSError, ValueError) as error:
            raise StartupError(f"tokens: {error}") from error

    def name_of(self, header: str) -> str | None:
        """Whose token an ``authorization`` header holds; None if it holds none of ours.

        All are compared, each in constant time, so that the time tells nothing.
        """
        self._refresh()
        match = _SCHEME.fullmatch(header)
        given = match["token"].encode() if match else b""
        name = None
        for token, its_name in self._names.items():
            if hmac.compare_digest(token, given):
                name = its_name
        return name

    def _refresh(self) -> None:
        if not self._changes.since_last_look():
            return
        try:
            self._names = _parse(self._path)
        except (OSError, ValueError) as error:
            log.error("the tokens stay as they were: %s", error)
        else:
            log.info("read %d tokens", len(self._names))


def _parse(path: Path) -> dict[bytes, str]:
    """Names by token. Raises ``ValueError`` with the number of a bad line, never its content."""
    names = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        match = _LINE.fullmatch(text)
        if match is None:
            raise ValueError(f"{path}: line {number} is neither TOKEN nor NAME:TOKEN")
        token = match["token"].encode()
        names[token] = match["name"] or hashlib.sha256(token).hexdigest()[:8]
    return names


class TokenCheck(grpc.aio.ServerInterceptor):
    """Ends calls without a valid token, known methods or not, before their request is read."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable["grpc.RpcMethodHandler[Any, Any] | None"]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "grpc.RpcMethodHandler[Any, Any] | None":
        if str(handler_call_details.method).startswith(_HEALTH):
            return await continuation(handler_call_details)
        headers = [
            str(value)
            for key, value in handler_call_details.invocation_metadata or ()
            if key == "authorization"
        ]
        name = self._tokens.name_of(headers[0]) if len(headers) == 1 else None
        if name is None:
            return grpc.stream_stream_rpc_method_handler(_refuse)
        # The call runs in this task, after this.
        token_name.set(name)
        return await continuation(handler_call_details)


async def _refuse(_: Any, context: Context) -> None:
    error = UnauthenticatedError()
    await context.abort(status_of(error), str(error), metadata_of(error))
