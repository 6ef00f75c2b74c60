"""Images in the prompts of a decoder: from pixels to the inputs of its graphs."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from export.runtime import Array, Floats, Session
from model.graph_spec import IMAGE_POSITIONS, IMAGE_VECTORS
from model.images import Pixels
from model.transformer import Transformer
from model.vision import ImageVectors


class PlacedImage(NamedTuple):
    """An image, and the index of its first token in the prompt."""

    start: int
    pixels: Pixels


class PlacedVectors(NamedTuple):
    """The vectors ``[tokens, size]`` of an image, and the index of its first token."""

    start: int
    vectors: Floats


PromptVectors = Sequence[Sequence[PlacedVectors]]
"""The images of each prompt."""


def encode_in_graph(encoder: Session, prompts: Sequence[Sequence[PlacedImage]]) -> PromptVectors:
    """Runs ``encode_images`` over each image."""
    return [
        [
            PlacedVectors(start, encoder.run(pixels=pixels[None])[IMAGE_VECTORS][0])
            for start, pixels in images
        ]
        for images in prompts
    ]


def encode_eagerly(model: Transformer, prompts: Sequence[Sequence[PlacedImage]]) -> PromptVectors:
    """Runs the eager module's vision tower over each image."""
    return [
        [
            PlacedVectors(
                start, model.encode_images(torch.from_numpy(np.stack([pixels])))[0].numpy()
            )
            for start, pixels in images
        ]
        for images in prompts
    ]


def image_inputs(prompts: PromptVectors, cached: Sequence[int], length: int) -> dict[str, Array]:
    """The inputs of ``decode`` for the next ``length`` tokens of each prompt.

    Args:
        prompts: of each row.
        cached: how many tokens of each row come before.
        length: of the padded rows.
    """
    vectors: list[Floats] = []
    positions: list[Array] = []
    for row, (images, first) in enumerate(zip(prompts, cached, strict=True)):
        for start, rows in images:
            begin, end = max(start, first), min(start + len(rows), first + length)
            if begin < end:
                vectors.append(rows[begin - start : end - start])
                positions.append(np.arange(begin - first, end - first) + row * length)
    if not vectors:
        return {}
    return {IMAGE_VECTORS: np.concatenate(vectors), IMAGE_POSITIONS: np.concatenate(positions)}


def eager_images(prompts: PromptVectors, length: int) -> ImageVectors | None:
    """Those of whole prompts, padded to ``length``, for the eager module; None without images."""
    inputs = image_inputs(prompts, [0] * len(prompts), length)
    return ImageVectors(*map(torch.from_numpy, inputs.values())) if inputs else None
