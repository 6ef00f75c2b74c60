"""Checks the addresses on which the server listens, and the origins of pages that call it."""

import re
from collections.abc import Iterable

from server.errors import StartupError

MAX_PORT = 65535
_UNIX = ("unix:", "unix-abstract:")
# As browsers send it: in lower case, without a path.
_ORIGIN = re.compile(r"\*|null|[^A-Z/:]+://[^A-Z/]+")


def host_and_port(address: str) -> tuple[str, int]:
    """Splits ``HOST:PORT``; the brackets of an IPv6 address are removed.

    Raises:
        StartupError: the address has no host, or no port of 0 to 65535.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port[:6]) > MAX_PORT:
        raise StartupError(
            f"address {address!r} is not HOST:PORT with a port of at most {MAX_PORT}"
        )
    return host.strip("[]"), int(port)


def check_grpc_address(address: str) -> None:
    """Checks ``HOST:PORT`` or ``unix:PATH``: gRPC truncates large ports, and guesses missing ones.

    Raises:
        StartupError: as :func:`host_and_port`.
    """
    if not address.startswith(_UNIX):
        host_and_port(address)


def check_origins(origins: Iterable[str]) -> None:
    """Checks ``SCHEME://HOST`` or ``SCHEME://HOST:PORT``: browsers send no other origins.

    Raises:
        StartupError: names the origin that no page has.
    """
    for origin in origins:
        if not _ORIGIN.fullmatch(origin):
            raise StartupError(f"{origin!r} is not an origin such as https://example.org")
