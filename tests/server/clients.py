"""Clients of a real server process."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from client.sync import Client
from tests.serving import server_process


@contextmanager
def connected(bundles: Path, *options: str) -> Iterator[Client]:
    """Starts a server for ``bundles`` and yields a client; stops both afterwards."""
    with (
        server_process(bundles, *options) as running,
        Client(running.target, timeout_seconds=60) as client,
    ):
        yield client
