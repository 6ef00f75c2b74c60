"""The shipped Transformer: descriptions of packages that its training did not see."""

from pathlib import Path

import pytest

from client.sync import Client
from export.quality.metrics import translation_metrics
from tests.benchmarks.translation import held_out_pairs
from tests.serving import server_process

NAME = "debian-en-it"
NUM_TEXTS = 100

pytestmark = pytest.mark.slow


def test_descriptions_are_translated_over_grpc(int8_bundles: Path) -> None:
    examples = held_out_pairs(NAME)[:NUM_TEXTS]
    sources = [example.source for example in examples]
    with server_process(int8_bundles) as running, Client(running.target) as client:
        outputs = client.translate(NAME, sources).outputs
        (short,) = client.translate(NAME, "This package contains the documentation.").outputs
    assert "documentazione" in short.text
    references = [example.target for example in examples]
    translated = translation_metrics([output.text for output in outputs], references)
    copied = translation_metrics(sources, references)
    assert translated["chrf"] > copied["chrf"] + 15
