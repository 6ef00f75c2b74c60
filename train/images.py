"""Training images: decoding, labels and augmentation."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
from PIL import Image

from export.checkpoint import Checkpoint
from model.bundle import ImageSpec, MultiVector
from model.examples import ClassificationExample, Example, TextExample
from model.image_config import image_spec
from model.images import ImageError, Pixels, decode_image
from train.batches import Row
from train.errors import RecipeError
from train.image_recipe import AugmentationRecipe
from train.recipe import ObjectiveKind, Recipe
from train.rows import TextRowEncoder, target_row
from train.vocabulary import Vocabulary

NUM_SAMPLES = 32
MAX_SAMPLE_BYTES = 1 << 20


def image_to_read(recipe: Recipe, start: Checkpoint | None) -> ImageSpec | None:
    """The preprocessing of the model's images; None for a model of texts.

    Raises:
        RecipeError: ``start`` reads texts with images, or it reads images and the model texts; or
            texts are to be augmented.
    """
    image = None if start is None else start.image
    if start is not None and image is not None and start.config.reads_texts:
        raise RecipeError("start_from: it reads texts with images")
    if recipe.model is not None:
        patches = recipe.model.patches
        if patches is None and image is not None:
            raise RecipeError("model.patches: missing; start_from reads images")
        image = None if patches is None else image_spec(patches.config)
    if image is None and recipe.training.augmentation is not None:
        raise RecipeError("training.augmentation: only in a model of images")
    return image


@dataclass(frozen=True)
class ImageRowEncoder:
    """Turns labelled images into rows. ``labels`` are in the order of the model's logits."""

    spec: ImageSpec
    labels: tuple[str, ...]

    def encode(self, _objective: ObjectiveKind, example: Any) -> list[Row]:
        """Turns ``example`` into a row.

        Raises:
            ValueError: it has no image, a damaged one, or a label that is not in ``labels``.
        """
        pixels = _pixels(example, self.spec)
        if example.text:
            raise ValueError("the model reads images, and it has a text")
        if example.label not in self.labels:
            raise ValueError(f"no training example has the label {example.label}")
        label = self.labels.index(example.label)
        return [Row(inputs=[0] * self.spec.num_tokens, targets=[label], pixels=pixels)]


@dataclass(frozen=True)
class TextImageRowEncoder:
    """Turns labelled pairs of a text and an image into rows, with an encoder of texts."""

    texts: TextRowEncoder
    spec: ImageSpec

    def encode(self, objective: ObjectiveKind, example: Any) -> list[Row]:
        """Turns ``example`` into a row.

        Raises:
            ValueError: it lacks a text or an image, its image is damaged, or its label unknown.
        """
        pixels = _pixels(example, self.spec)
        if not example.text:
            raise ValueError("the model reads texts with images, and it has no text")
        text = msgspec.structs.replace(example, image=msgspec.UNSET)
        (row,) = self.texts.encode(objective, text)
        return [replace(row, pixels=pixels, num_image_tokens=self.spec.num_tokens)]


@dataclass(frozen=True)
class ImageToTextRowEncoder:
    """Turns images and the texts about them into rows, with the vocabulary of the texts."""

    vocabulary: Vocabulary
    spec: ImageSpec

    def encode(self, _objective: ObjectiveKind, example: Any) -> list[Row]:
        """Turns ``example`` into a row, with the text as its targets.

        Raises:
            ValueError: it has no image, or a damaged one.
        """
        pixels = _pixels(example, self.spec)
        row = target_row(self.vocabulary, example.text)
        return [replace(row, pixels=pixels, num_image_tokens=self.spec.num_tokens)]


RowEncoder = TextRowEncoder | ImageRowEncoder | TextImageRowEncoder | ImageToTextRowEncoder


def encoder_of(
    objective: ObjectiveKind,
    vocabulary: Vocabulary | None,
    image: ImageSpec | None,
    labels: tuple[str, ...],
    reading: MultiVector | None = None,
) -> RowEncoder:
    """An encoder of examples for a model of texts, of images, or of both.

    ``reading``: how queries and documents are tokenized.

    Raises:
        ValueError: the model reads neither texts nor images.
    """
    if vocabulary is None and image is not None:
        return ImageRowEncoder(image, labels)
    if vocabulary is None:
        raise ValueError("neither texts nor images")
    if objective == ObjectiveKind.IMAGE_TO_TEXT and image is not None:
        return ImageToTextRowEncoder(vocabulary, image)
    texts = TextRowEncoder(vocabulary, labels, reading)
    return texts if image is None else TextImageRowEncoder(texts, image)


def _pixels(example: Any, spec: ImageSpec) -> Pixels:
    """The pixels of ``example``. Raises ``ValueError`` if its image is missing or damaged."""
    with_image = isinstance(example, ClassificationExample | TextExample)
    if not with_image or not isinstance(example.image, bytes):
        raise ValueError("the model reads images, and it has none")
    try:
        return decode_image(example.image, spec)
    except ImageError as error:
        raise ValueError(f"its image {error}") from error


def augment_row(row: Row, recipe: AugmentationRecipe, rng: random.Random) -> Row:
    """``row`` with its image rotated, scaled and shifted by uniform random amounts."""
    if row.pixels is None:
        return row
    return replace(
        row,
        pixels=transform(
            row.pixels,
            degrees=rng.uniform(-recipe.rotation, recipe.rotation),
            scale=1 + rng.uniform(-recipe.scale, recipe.scale),
            shift=(
                rng.uniform(-recipe.shift, recipe.shift),
                rng.uniform(-recipe.shift, recipe.shift),
            ),
        ),
    )


def transform(
    pixels: Pixels, *, degrees: float, scale: float, shift: tuple[float, float]
) -> Pixels:
    """``pixels [height, width, channels]``, rotated and scaled about the centre, then shifted.

    Interpolation is bilinear; pixels from outside are black.

    Args:
        degrees: clockwise.
        shift: to the right and down, in pixels.
    """
    height, width, channels = pixels.shape
    x, y = width / 2, height / 2  # in Pillow's coordinates, the centre of the first pixel is 0.5
    # Maps a position in the result to its position in ``pixels``: the inverse transform.
    cos, sin = (f(math.radians(degrees)) / scale for f in (math.cos, math.sin))
    right, down = x + shift[0], y + shift[1]
    inverse = (cos, sin, x - cos * right - sin * down, -sin, cos, y + sin * right - cos * down)
    image = Image.fromarray(pixels[..., 0] if channels == 1 else pixels)
    moved = image.transform(
        (width, height), Image.Transform.AFFINE, inverse, Image.Resampling.BILINEAR
    )
    return np.asarray(moved).reshape(pixels.shape)


def sample_images(examples: Sequence[Example]) -> tuple[bytes, ...]:
    """At most :data:`NUM_SAMPLES` of the examples' files, evenly spaced, 1 MiB in total."""
    step = max(1, len(examples) // NUM_SAMPLES)
    samples: list[bytes] = []
    for example in examples[::step][:NUM_SAMPLES]:
        image = getattr(example, "image", None)
        size = sum(map(len, samples))
        if isinstance(image, bytes) and size + len(image) <= MAX_SAMPLE_BYTES:
            samples.append(image)
    return tuple(samples)
