"""One real server for the tests of the client."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving import server_process


@pytest.fixture(scope="package")
def target(tiny_bundles: Path) -> Iterator[str]:
    with server_process(tiny_bundles, "--threads", "1") as running:
        yield running.target


@pytest.fixture(scope="package")
def default_models(int8_bundles: Path) -> Iterator[str]:
    """Address of a server with the default models."""
    with server_process(int8_bundles) as running:
        yield running.target
