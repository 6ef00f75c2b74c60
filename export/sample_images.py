"""Images on which exports measure models that come without images."""

from collections.abc import Sequence

import numpy as np

from model.bundle import ImageSpec
from model.images import Pixels

NUM_WAVES, NUM_RECTANGLES = 6, 4


def images_of(spec: ImageSpec, own: Sequence[Pixels], count: int, seed: int) -> list[Pixels]:
    """At most ``count`` of a model's ``own`` images; without any, ``count`` generated ones."""
    return list(own[:count]) or sample_images(spec, count, seed)


def sample_images(spec: ImageSpec, count: int, seed: int) -> list[Pixels]:
    """Coloured waves and rectangles with noise: edges, areas and textures of every size.

    The same ``seed`` gives the same images.
    """
    rng = np.random.default_rng(seed)
    return [_sample(spec, rng) for _ in range(count)]


def _sample(spec: ImageSpec, rng: np.random.Generator) -> Pixels:
    height, width, channels = spec.height, spec.width, spec.num_channels
    y, x = np.mgrid[:height, :width] / max(height, width)
    image = np.full((height, width, channels), 0.5)
    for _ in range(NUM_WAVES):
        frequency = rng.exponential(4.0, 2) * rng.choice((-1, 1), 2)
        wave = np.cos(2 * np.pi * (frequency[0] * x + frequency[1] * y + rng.random()))
        image += 0.15 * wave[..., None] * rng.normal(size=channels)
    for _ in range(NUM_RECTANGLES):
        top, left = rng.integers(0, height), rng.integers(0, width)
        bottom, right = top + rng.integers(1, height // 2), left + rng.integers(1, width // 2)
        image[top:bottom, left:right] = rng.random(channels)
    image += rng.normal(scale=0.03, size=image.shape)
    return (255 * image.clip(0, 1)).round().astype(np.uint8)
