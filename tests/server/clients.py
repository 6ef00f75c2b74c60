"""Clients of a real server."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from client.sync import Client
from tests.serving import server_process


@contextmanager
def connected(bundles: Path, *options: str) -> Iterator[Client]:
    """Starts a server of ``bundles`` with these options, and ends it after the client."""
    with (
        server_process(bundles, *options) as running,
        Client(running.target, timeout_seconds=60) as client,
    ):
        yield client
