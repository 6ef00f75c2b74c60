"""Baselines of ``debian-sections`` on its held-out set, as JSON.

    python -m tests.benchmarks.sections

``majority`` always answers the most frequent section; ``naive_bayes`` is multinomial, over words,
with add-one smoothing, trained on the same examples, which come through apt.
"""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from export.quality.metrics import exact_match, macro_f1
from model.examples import ClassificationExample
from train.data.bm25 import words
from train.data.sources import load_dataset
from train.read_recipe import read_recipe

RECIPE = Path(__file__).parents[2] / "train" / "recipes" / "debian-sections.toml"


def naive_bayes(train: Sequence[ClassificationExample], texts: Sequence[str]) -> list[str]:
    """The most probable label of each text."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    priors = Counter(example.label for example in train)
    for example in train:
        counts[example.label].update(words(example.text))
    vocabulary = {word for counter in counts.values() for word in counter}
    totals = {label: counter.total() + len(vocabulary) for label, counter in counts.items()}

    def score(label: str, text: str) -> float:
        known = (word for word in words(text) if word in vocabulary)
        likelihood = sum(math.log((counts[label][word] + 1) / totals[label]) for word in known)
        return math.log(priors[label]) + likelihood

    return [max(priors, key=lambda label: score(label, text)) for text in texts]


def main() -> None:
    """Prints accuracy and macro F1 of each baseline."""
    dataset = load_dataset(read_recipe(RECIPE), RECIPE.parent)
    train, held_out = (
        [e for e in part if isinstance(e, ClassificationExample)]
        for part in (dataset.train, dataset.held_out)
    )
    references = [example.label for example in held_out]
    frequent = Counter(example.label for example in train).most_common(1)[0][0]
    outputs = {
        "majority": [frequent] * len(held_out),
        "naive_bayes": naive_bayes(train, [example.text for example in held_out]),
    }
    figures = {
        name: {"accuracy": exact_match(found, references), "f1": macro_f1(found, references)}
        for name, found in outputs.items()
    }
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
