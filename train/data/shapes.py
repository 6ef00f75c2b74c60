"""Images of shapes: synthetic tasks for models of images."""

import random

import numpy as np
import numpy.typing as npt

from model.examples import ClassificationExample, Example, TextExample
from model.images import encode_png

SIDE = 16  # pixels
RADII = (5.0, 7.0)  # pixels
LIGHT, DARK = (180.0, 255.0), (0.0, 50.0)  # brightness of a shape and of its background
NOISE = 8.0  # standard deviation
PLACE_SIDE, PLACE_RADII = 12, (4.5, 5.5)  # for each of two shapes
PLACES = ("left", "right")
# The row and column of a second shape in the image's quarters, and how the first one lies to it.
SECOND_PLACES = ((0, 1, "left of"), (1, 0, "above"))
QUESTIONS = ("what is on the {} ?", "which shape is on the {} side ?", "{} ?")
Floats = npt.NDArray[np.float64]


def shapes(rng: random.Random) -> Example:
    """A cross, ring, square or triangle of random size, place and brightness; 16 by 16, grey."""
    label = rng.choice(sorted(INSIDE))
    return ClassificationExample(label=label, image=_png(_drawn(label, SIDE, RADII, rng), rng))


def questions(rng: random.Random) -> Example:
    """Two shapes side by side, and the question which is left or right; 12 by 24, grey."""
    labels = [rng.choice(sorted(INSIDE)) for _ in PLACES]
    values = np.hstack([_drawn(label, PLACE_SIDE, PLACE_RADII, rng) for label in labels])
    place = rng.randrange(len(PLACES))
    text = rng.choice(QUESTIONS).format(PLACES[place])
    return ClassificationExample(text=text, label=labels[place], image=_png(values, rng))


def captions(rng: random.Random) -> Example:
    """One or two shapes in an image of 24 by 24, grey, and a text that says which and where."""
    labels = rng.choices(sorted(INSIDE), k=rng.choice((1, 2, 2, 2)))
    *second, relation = rng.choice(SECOND_PLACES)
    values = np.full((2 * PLACE_SIDE, 2 * PLACE_SIDE), rng.uniform(*DARK))
    for label, (row, column) in zip(labels, ((0, 0), second), strict=False):
        top, left = row * PLACE_SIDE, column * PLACE_SIDE
        place = values[top : top + PLACE_SIDE, left : left + PLACE_SIDE]
        place[:] = _drawn(label, PLACE_SIDE, PLACE_RADII, rng)
    text = f" {relation} ".join(f"a {label}" for label in labels)
    return TextExample(text=text, image=_png(values, rng))


def _drawn(label: str, side: int, radii: tuple[float, float], rng: random.Random) -> Floats:
    """The pixel values of one shape at a random place in ``[side, side]``."""
    radius = rng.uniform(*radii)
    x, y = (rng.uniform(radius, side - radius) for _ in range(2))
    rows, columns = np.mgrid[:side, :side] + 0.5
    inside = INSIDE[label]((columns - x) / radius, (rows - y) / radius)
    drawn: Floats = np.where(inside, rng.uniform(*LIGHT), rng.uniform(*DARK))
    return drawn


def _png(values: Floats, rng: random.Random) -> bytes:
    """Adds noise to ``values`` and encodes them as a grey PNG file."""
    noise = np.random.default_rng(rng.getrandbits(64)).normal(scale=NOISE, size=values.shape)
    pixels = (values + noise).round().clip(0, 255).astype(np.uint8)
    return encode_png(pixels[..., None])


# Whether a point is inside the shape; coordinates run from -1 to 1, to the right and down.
INSIDE = {
    "cross": lambda x, y: (np.minimum(abs(x), abs(y)) <= 0.2) & (np.maximum(abs(x), abs(y)) <= 1),
    "ring": lambda x, y: (x**2 + y**2 <= 1) & (x**2 + y**2 >= 0.3),
    "square": lambda x, y: np.maximum(abs(x), abs(y)) <= 0.9,
    "triangle": lambda x, y: (abs(y) <= 0.9) & (abs(x) <= (y + 0.9) / 1.8),
}
