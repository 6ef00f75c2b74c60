"""The shipped model of summaries on descriptions that no training saw, beside two baselines.

    python -m tests.benchmarks.summaries [--json docs/summaries.json]
    python -m scripts.translators

``copy`` leaves a description as it is; ``first words`` keeps as many words as do best on the
training pairs.
"""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from client.sync import Client
from export.quality.metrics import translation_metrics
from model.examples import TranslationExample
from tests.benchmarks import reports
from tests.benchmarks.translation import (
    ROOT,
    Translate,
    copy,
    export_bundle,
    held_out_pairs,
    training_pairs,
    translate_all,
)
from tests.benchmarks.translators import DECODING, PRECISIONS, SERVED
from tests.serving import server_process

NAME = "debian-summaries"
NUM_TUNING = 2000  # training pairs that choose the number of words


def first_words(train: Sequence[TranslationExample]) -> Translate:
    """The baseline that keeps the first words: the number with the best BLEU on ``train``."""
    sources, targets = [pair.source for pair in train], [pair.target for pair in train]

    def cut(texts: Sequence[str], count: int) -> list[str]:
        return [" ".join(text.split()[:count]) for text in texts]

    def score(count: int) -> float:
        return translation_metrics(cut(sources, count), targets)["bleu"]

    return partial(cut, count=max(range(3, 16), key=score))


def measure() -> dict[str, Any]:
    """The report: BLEU and chrF of every system."""
    pairs, train = held_out_pairs(NAME), training_pairs(NAME)[:NUM_TUNING]
    systems: dict[str, Translate] = {"copy": copy, "first words": first_words(train)}
    for precision in PRECISIONS:
        bundle = SERVED / f"{NAME}-{precision}" / NAME
        export_bundle(NAME, bundle, precision, ROOT / "models" / NAME / "config.json")
    with ExitStack() as stack:
        for precision in PRECISIONS:
            server = stack.enter_context(server_process(SERVED / f"{NAME}-{precision}"))
            client = stack.enter_context(Client(server.target, timeout_seconds=600))
            for decoding, options in DECODING.items():
                systems[f"{precision}, {decoding}"] = partial(
                    translate_all, client, NAME, **options
                )
        sources, references = [pair.source for pair in pairs], [pair.target for pair in pairs]
        rows = []
        for name, system in systems.items():
            rows.append({"system": name, **translation_metrics(system(sources), references)})
            print(f"{name}: {rows[-1]}", file=sys.stderr)
    return {"num_texts": len(pairs), "systems": rows}


def main(
    json_path: Annotated[Path, typer.Option("--json", help="The report.")] = ROOT
    / "docs"
    / "summaries.json",
) -> None:
    """Measures the model of summaries."""
    reports.write(measure(), json_path)


if __name__ == "__main__":
    typer.run(main)
