"""The shipped models for searches: summaries of packages that their training did not see."""

from pathlib import Path

import pytest

from client.encoder_types import LongInput
from client.sync import Client
from export.importers.native import read_held_out
from model.bundle import Task
from model.examples import RankingExample
from tests.serving import server_process

ROOT = Path(__file__).parents[2]
NUM_SEARCHES = 150

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["debian-splade", "debian-colbert"])
def test_held_out_documents_are_found_over_grpc(name: str, int8_bundles: Path) -> None:
    path = ROOT / "models" / name / "held_out.jsonl"
    found = read_held_out(path, Task.EMBED, name).examples[:NUM_SEARCHES]
    examples = [example for example in found if isinstance(example, RankingExample)]
    num_first = 0
    with server_process(int8_bundles) as running, Client(running.target) as client:
        for example in examples:
            documents = [*example.others, example.relevant]
            ranked = client.rerank(
                name, example.query, documents, long_input=LongInput.TRUNCATE_RIGHT
            )
            best = ranked.outputs[0]
            num_first += best.index == len(example.others)
    assert num_first / len(examples) > 0.6  # 0.71 of all 500 held-out searches
