"""Bundles as fixtures; see :mod:`tests.bundles`."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import bundles

# What trains, exports or starts something whole, with all tests beside it: half of the time.
SLOW = (
    "client/test_default_models.py",
    "container",
    "defaults",
    "export/test_large.py",
    "families",
    "loadtest/test_compare_servers.py",
    "loadtest/test_gpu.py",
    "soak",
    "test_round_trip.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks them."""
    folders = [Path(__file__).parent / name for name in SLOW]
    for item in items:
        if any(item.path == folder or folder in item.path.parents for folder in folders):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def logging_is_left_as_it_was() -> Iterator[None]:
    """Whoever silences logging here takes their messages from all tests that follow."""
    disabled = logging.root.manager.disable
    yield
    assert logging.root.manager.disable == disabled


@pytest.fixture(scope="session")
def tiny_bundles() -> Path:
    """Models that the tests trained: ``dates``, ``tiny-decoder``, ``tiny-classifier``."""
    return bundles.tiny_bundles()


@pytest.fixture(scope="session")
def head_bundles() -> Path:
    """Random encoders with a head for each call: ``tests.heads.NAMES``."""
    return bundles.head_bundles()


@pytest.fixture(scope="session")
def fp32_bundles() -> Path:
    """The four default models in fp32."""
    return bundles.default_bundles("fp32")


@pytest.fixture(scope="session")
def int8_bundles() -> Path:
    """The four default models in int8."""
    return bundles.default_bundles("int8")
