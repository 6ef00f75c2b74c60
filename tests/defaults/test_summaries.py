"""The shipped model of summaries: descriptions of packages that its training did not see."""

from pathlib import Path

import pytest

from client.sync import Client
from export.quality.metrics import translation_metrics
from tests.benchmarks.translation import held_out_pairs
from tests.serving import server_process

NAME = "debian-summaries"
NUM_TEXTS, NUM_WORDS = 200, 8

pytestmark = pytest.mark.slow


def test_summaries_beat_the_first_words(int8_bundles: Path) -> None:
    examples = held_out_pairs(NAME)[:NUM_TEXTS]
    sources = [example.source for example in examples]
    with server_process(int8_bundles) as running, Client(running.target) as client:
        outputs = client.generate(NAME, sources).outputs
    references = [example.target for example in examples]
    written = translation_metrics([output.text for output in outputs], references)
    first = [" ".join(source.split()[:NUM_WORDS]) for source in sources]
    kept = translation_metrics(first, references)
    assert written["bleu"] > kept["bleu"] + 2
    assert written["chrf"] > kept["chrf"] + 2
