"""Entities with the request's labels by the client and the command line."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from client.aio import AsyncClient
from client.errors import TriuneError
from client.sync import Client
from tests.client.test_retrieval import run
from tests.gliner_models import GLINER, SAMPLE, Rules, reference
from tests.serving import server_process

LABELS = ["person", "a city, or a town", "date"]


@pytest.fixture(scope="module")
def address(gliner_bundles: Path) -> Iterator[str]:
    with server_process(gliner_bundles, "--threads", "1") as running:
        yield running.target


async def test_both_clients_find_the_same(address: str) -> None:
    with Client(address) as client:
        found = client.tag(GLINER, [SAMPLE, "a"], candidate_labels=LABELS).outputs
        nested = client.tag(GLINER, SAMPLE, candidate_labels=LABELS, min_score=0.2, nested=True)
        with pytest.raises(TriuneError) as caught:
            client.tag(GLINER, SAMPLE)
    assert caught.value.violations[0].field == "options.candidate_labels"
    expected = reference(SAMPLE, LABELS)
    assert expected
    assert [(x.start, x.end, x.label) for x in found[0].entities] == [x[:3] for x in expected]
    expected = reference(SAMPLE, LABELS, Rules(0.2, nested=True))
    places = [(x.start, x.end, x.label) for x in nested.outputs[0].entities]
    assert places == [x[:3] for x in expected]
    async with AsyncClient(address) as other:
        assert (await other.tag(GLINER, [SAMPLE, "a"], candidate_labels=LABELS)).outputs == found


def test_the_command_has_flags(address: str) -> None:
    labels = [argument for label in LABELS for argument in ("--label", label)]
    command = ("tag", "--model", GLINER, *labels)
    lines = run(address, *command, SAMPLE).splitlines()
    expected = reference(SAMPLE, LABELS)
    assert lines == [
        f"{each.label} {each.score:.3f} {each.start}:{each.end} {SAMPLE[each.start : each.end]}"
        for each in expected
    ]
    flags = ("--nested", "--multi-label", "--min-score", "0.2", "--json")
    (printed,) = json.loads(run(address, *command, *flags, SAMPLE))["outputs"]
    found = [(each["start"], each["end"], each["label"]) for each in printed["entities"]]
    expected = reference(SAMPLE, LABELS, Rules(0.2, nested=True, multi_label=True))
    assert found == [each[:3] for each in expected]
