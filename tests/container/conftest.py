"""The container image, built once for this folder's tests and then removed."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.container.image import ROOT, Image, Storage, reason_to_skip


@pytest.fixture(scope="session")
def image() -> Iterator[Image]:
    if reason := reason_to_skip():
        pytest.skip(reason)
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=build, prefix="image-") as folder:
        storage = Storage(Path(folder))
        try:
            yield storage.build()
        finally:
            storage.close()
