"""The image, built once for the tests of this folder and removed after them."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.container.image import ROOT, Image, Storage, why_not_here


@pytest.fixture(scope="session")
def image() -> Iterator[Image]:
    if reason := why_not_here():
        pytest.skip(reason)
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=build, prefix="image-") as folder:
        storage = Storage(Path(folder))
        try:
            yield storage.build()
        finally:
            storage.close()
