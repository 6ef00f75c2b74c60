"""The shipped model of summaries: descriptions of packages that its training did not see."""

from pathlib import Path

import pytest

from client.sync import Client
from export.importers.native import read_held_out
from export.quality.metrics import translation_metrics
from model.bundle import Task
from model.examples import TranslationExample
from tests.serving import server_process

ROOT = Path(__file__).parents[2]
NAME = "debian-summaries"
HELD_OUT = ROOT / "models" / NAME / "held_out.jsonl"
NUM_TEXTS, NUM_WORDS = 200, 8

pytestmark = pytest.mark.slow


def test_summaries_beat_the_first_words(int8_bundles: Path) -> None:
    found = read_held_out(HELD_OUT, Task.TRANSLATE, NAME).examples[:NUM_TEXTS]
    examples = [example for example in found if isinstance(example, TranslationExample)]
    sources = [example.source for example in examples]
    with server_process(int8_bundles) as running, Client(running.target) as client:
        outputs = client.generate(NAME, sources).outputs
    references = [example.target for example in examples]
    written = translation_metrics([output.text for output in outputs], references)
    first = [" ".join(source.split()[:NUM_WORDS]) for source in sources]
    kept = translation_metrics(first, references)
    assert written["bleu"] > kept["bleu"] + 2
    assert written["chrf"] > kept["chrf"] + 2
