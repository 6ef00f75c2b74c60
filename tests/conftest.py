"""Bundles as fixtures; see :mod:`tests.bundles`."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import bundles


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
