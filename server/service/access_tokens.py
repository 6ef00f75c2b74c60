"""Checks bearer tokens (RFC 6750) and finds the names of their owners."""

import hashlib
import hmac
import logging
import re
from pathlib import Path

from server.errors import StartupError
from server.file_changes import FileChanges

log = logging.getLogger(__name__)

_LINE = re.compile(r"(?:(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*):)?(?P<token>[A-Za-z0-9._~+/-]+=*)")
_SCHEME = re.compile(r"bearer +(?P<token>\S+) *", re.IGNORECASE)


class AccessTokens:
    """The tokens of a file, one per line: ``TOKEN`` or ``NAME:TOKEN``; ``#`` starts a comment.

    The file is reloaded when it changes. If it cannot be read or has an invalid line, the previous
    tokens stay valid; an empty file rejects every call. Several lines may have the same name, so
    that tokens can be rotated. A token without a name is named by its hash.

    Raises:
        StartupError: the file cannot be read at startup.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changes = FileChanges(path)
        try:
            self._names = _parse(path)
        except (OSError, ValueError) as error:
            raise StartupError(f"tokens: {error}") from error
        if not self._names:
            log.warning("%s has no token: every call is refused", path)

    def name_of(self, header: str) -> str | None:
        """The owner of the token in an ``Authorization`` header; ``None`` if it is not valid.

        All tokens are compared, each in constant time, to prevent timing attacks.
        """
        self._refresh()
        match = _SCHEME.fullmatch(header)
        given = match["token"].encode() if match else b""
        found = None
        for token, name in self._names.items():
            if hmac.compare_digest(token, given):
                found = name
        return found

    def _refresh(self) -> None:
        if not self._changes.detected():
            return
        try:
            self._names = _parse(self._path)
        except (OSError, ValueError) as error:
            log.error("keeping the previous tokens: %s", error)
        else:
            log.info("reloaded %d tokens", len(self._names))


def _parse(path: Path) -> dict[bytes, str]:
    """Owner names by token. A ``ValueError`` gives an invalid line's number, never its content."""
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
