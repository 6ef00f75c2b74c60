"""The shipped translators on texts that no training saw, beside two baselines.

    python -m tests.benchmarks.translators [--json docs/translators.json]
    python -m scripts.translators

Exports each model as fp32 and as int8, serves both, and translates every set greedily and with four
beams. ``copy`` leaves a text as it is; ``lookup`` replaces each word by its likeliest translation,
learnt from the model's training pairs or, for models of others, from messages outside the set.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
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
    everyday,
    export_bundle,
    group_by_length,
    held_out_pairs,
    messages,
    reversed_pairs,
    training_pairs,
    translate_all,
    word_lookup,
)
from tests.serving import server_process

SERVED = ROOT / "build" / "translators"
OWN = "debian-en-it"
PRECISIONS = ("fp32", "int8")
DECODING: dict[str, dict[str, Any]] = {"greedy": {}, "beam 4": {"beam_size": 4}}
BOUNDS = (5, 10, 20, 40, 80)  # words of a source: the last length of each group
NUM_MESSAGES = 500  # of a set; the others teach the lookup


@dataclass(frozen=True, kw_only=True)
class TranslationSet:
    """``train``: pairs that the lookup learns from."""

    model: str
    name: str
    pairs: Sequence[TranslationExample]
    train: Sequence[TranslationExample]


def all_sets() -> Iterator[TranslationSet]:
    """Each model with each of its sets."""
    train = training_pairs(OWN)
    italian = messages("it")[:NUM_MESSAGES]
    for name, pairs in (
        ("package descriptions, held out", held_out_pairs(OWN)),
        ("messages of programs", italian),
        ("everyday sentences", everyday()),
    ):
        yield TranslationSet(model=OWN, name=name, pairs=pairs, train=train)
    portuguese = messages("pt_BR")
    for model, pairs in (("en-pt", portuguese), ("pt-en", reversed_pairs(portuguese))):
        yield TranslationSet(
            model=model,
            name="messages of programs",
            pairs=pairs[:NUM_MESSAGES],
            train=pairs[NUM_MESSAGES:],
        )


def metrics(pairs: Sequence[TranslationExample], outputs: Sequence[str]) -> dict[str, Any]:
    """BLEU and chrF of all pairs, and by the length of the source."""
    lengths = [len(pair.source.split()) for pair in pairs]

    def of(indices: Sequence[int]) -> dict[str, float]:
        chosen = [outputs[i] for i in indices], [pairs[i].target for i in indices]
        return translation_metrics(*chosen)

    return {
        **of(range(len(pairs))),
        "by_length": [
            {"first": first, "last": last, "num_texts": len(indices), **of(indices)}
            for (first, last), indices in group_by_length(lengths, BOUNDS).items()
        ],
    }


def measure() -> dict[str, Any]:
    """The report: for each set, the figures of every system."""
    sets = list(all_sets())
    weights = {OWN: ROOT / "models" / OWN / "config.json"}
    for model in {one.model for one in sets}:
        for precision in PRECISIONS:
            export_bundle(model, SERVED / precision / model, precision, weights.get(model))
    with ExitStack() as stack:
        clients = {}
        for precision in PRECISIONS:
            server = stack.enter_context(server_process(SERVED / precision))
            clients[precision] = stack.enter_context(Client(server.target, timeout_seconds=600))
        return {"sets": [_measure_set(one, clients) for one in sets]}


def _measure_set(one: TranslationSet, clients: dict[str, Client]) -> dict[str, Any]:
    systems: dict[str, Translate] = {"copy": copy, "lookup": word_lookup(one.train)}
    for precision, client in clients.items():
        for decoding, options in DECODING.items():
            systems[f"{precision}, {decoding}"] = partial(
                translate_all, client, one.model, **options
            )
    sources = [pair.source for pair in one.pairs]
    rows = []
    for name, translate in systems.items():
        rows.append({"system": name, **metrics(one.pairs, translate(sources))})
        print(f"{one.model}, {one.name}, {name}: BLEU {rows[-1]['bleu']:.1f}", file=sys.stderr)
    return {
        "model": one.model,
        "set": one.name,
        "num_texts": len(one.pairs),
        "systems": rows,
    }


def main(
    json_path: Annotated[Path, typer.Option("--json", help="The report.")] = ROOT
    / "docs"
    / "translators.json",
) -> None:
    """Measures every shipped translator."""
    reports.write(measure(), json_path)


if __name__ == "__main__":
    typer.run(main)
