"""The shipped classifier: the sections of packages that its training did not see."""

from pathlib import Path

import pytest

from client.sync import Client
from export.importers.native import read_held_out
from model.bundle import Task
from model.examples import ClassificationExample
from tests.serving import server_process

ROOT = Path(__file__).parents[2]
NAME = "debian-sections"
HELD_OUT = ROOT / "models" / NAME / "held_out.jsonl"
NUM_TEXTS = 200

pytestmark = pytest.mark.slow


def test_sections_are_classified_over_grpc(int8_bundles: Path) -> None:
    found = read_held_out(HELD_OUT, Task.CLASSIFY, NAME).examples[:NUM_TEXTS]
    examples = [example for example in found if isinstance(example, ClassificationExample)]
    with server_process(int8_bundles) as running, Client(running.target) as client:
        outputs = client.classify(NAME, [example.text for example in examples]).outputs
        (game,) = client.classify(NAME, "A chess game with a strong computer player").outputs
    assert game.labels[0].label == "games"
    correct = sum(o.labels[0].label == e.label for o, e in zip(outputs, examples, strict=True))
    assert correct / len(examples) > 0.6  # 0.72 of all 1,000 held-out texts
