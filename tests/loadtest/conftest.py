"""One real server for the tests of the load generator."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving import server_process


@pytest.fixture(scope="package")
def target(tiny_bundles: Path) -> Iterator[str]:
    with server_process(tiny_bundles, "--threads", "1") as running:
        yield running.target


@pytest.fixture(scope="module")
def encoders(head_bundles: Path) -> Iterator[str]:
    with server_process(head_bundles, "--threads", "1") as running:
        yield running.target


@pytest.fixture(scope="module")
def retrieval(retrieval_bundles: Path) -> Iterator[str]:
    with server_process(retrieval_bundles, "--threads", "1") as running:
        yield running.target
