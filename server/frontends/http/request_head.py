"""Heads of requests: what RFC 9110 and RFC 9112 say of them that the parser does not do."""

from collections.abc import Iterable

_UPGRADING = (b"upgrade", b"http2-settings")


def is_host_given(version: str, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a request has one ``Host``, or none by HTTP/1.0 (RFC 9112, 3.2)."""
    num_hosts = sum(name == b"host" for name, _ in headers)
    return num_hosts == 1 or (num_hosts == 0 and version != "1.1")


def without_upgrade(line: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A head that asks for no other protocol; a server may ignore that (RFC 9110, 7.8).

    Args:
        line: the request line.
        headers: names in lower case, and values.
    """
    lines = [line]
    for name, value in headers:
        if name == b"connection":
            options = (option.strip() for option in value.split(b","))
            kept = b", ".join(option for option in options if option.lower() not in _UPGRADING)
            lines.append(b"connection: " + kept)
        elif name not in _UPGRADING:
            lines.append(name + b": " + value)
    return b"\r\n".join((*lines, b"", b""))
