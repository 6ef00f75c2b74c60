"""Checks the addresses on which the server listens, and the origins of pages that call it."""

import errno
import re
import socket
from collections.abc import Iterable

from server.errors import StartupError

MAX_PORT = 65535
_UNIX = ("unix:", "unix-abstract:")
_EVERY_HOST = {"0.0.0.0", "::"}
# The listener reports other errors, such as an unsupported address family.
_REFUSALS = {errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES}
# An origin as browsers send it: in lower case, without a path.
_ORIGIN = re.compile(r"\*|null|[^A-Z/:]+://[^A-Z/]+")


def host_and_port(address: str) -> tuple[str, int]:
    """Splits ``HOST:PORT``; the brackets of an IPv6 address are removed.

    Raises:
        StartupError: the address has no host, or no port of 0 to 65535.
    """
    host, _, port = address.rpartition(":")
    is_number = port.isascii() and port.isdecimal() and len(port) <= 5
    if not host or not is_number or int(port) > MAX_PORT:
        raise StartupError(
            f"address {address!r} is not HOST:PORT with a port of at most {MAX_PORT}"
        )
    return host.strip("[]"), int(port)


def conflict(one: str, other: str) -> bool:
    """Whether two valid addresses cannot both be listened on; names of hosts are not resolved."""
    if one.startswith(_UNIX) or other.startswith(_UNIX):
        return one == other
    (host, port), (other_host, other_port) = host_and_port(one), host_and_port(other)
    same_host = host == other_host or not _EVERY_HOST.isdisjoint({host, other_host})
    return same_host and port == other_port != 0


def check_grpc_address(address: str) -> None:
    """Checks ``HOST:PORT`` or ``unix:PATH``: gRPC truncates large ports, and guesses missing ones.

    Raises:
        StartupError: see :func:`host_and_port`; or the socket has no name.
    """
    if address in _UNIX:
        raise StartupError(f"address {address!r} has no path after {address}")
    if not address.startswith(_UNIX):
        host_and_port(address)


def check_free(address: str) -> None:
    """Checks that ``HOST:PORT`` is free, by binding without listening, so nobody can connect.

    Unix sockets are not checked, because gRPC replaces them.

    Raises:
        StartupError: the host is unknown or not local, or the port is in use or privileged.
    """
    if address.startswith(_UNIX):
        return
    host, port = host_and_port(address)
    refusal: OSError | None = None
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        found, refusal = [], error
    for family, *_, name in found:  # a listener needs only one of them
        try:
            with socket.socket(family) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(name)
                return
        except OSError as error:
            if error.errno in _REFUSALS:
                refusal = error
    if refusal is not None:
        reason = refusal.strerror or refusal
        raise StartupError(f"cannot listen on {address}: {reason}") from refusal


def check_origins(origins: Iterable[str]) -> None:
    """Checks ``SCHEME://HOST`` or ``SCHEME://HOST:PORT``: browsers send no other origins.

    Raises:
        StartupError: an origin is malformed; the message names it.
    """
    for origin in origins:
        if not _ORIGIN.fullmatch(origin):
            raise StartupError(f"{origin!r} is not an origin such as https://example.org")
