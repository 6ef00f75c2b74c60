"""Labels of the request, by the client and the command line, against a real server."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from client.sync import Client
from tests.serving import server_process

ROOT = Path(__file__).parents[2]
TEXT, LABELS = "A dog runs, and runs.", ["politics, at home", "an animal"]


def test_classifies_by_labels_of_the_request(head_bundles: Path) -> None:
    with server_process(head_bundles, "--threads", "1") as running, Client(running.target) as ours:
        (either,) = ours.classify("entailer", TEXT, candidate_labels=LABELS).outputs
        assert {each.label for each in either.labels} == set(LABELS)
        assert sum(each.score for each in either.labels) == pytest.approx(1)
        options: Any = {"hypothesis_template": "It is {}.", "multi_label": True}
        each_alone = ours.classify("entailer", TEXT, candidate_labels=LABELS, **options)
        command = [sys.executable, "-m", "client", "--target", running.target, "classify"]
        command += ["--model", "entailer", "--hypothesis-template", "It is {}.", "--multi-label"]
        command += ["--label", LABELS[0], "--label", LABELS[1], "--json", TEXT]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, timeout=60)
    (printed,) = json.loads(ran.stdout)["outputs"]
    expected = [(each.label, each.score) for each in each_alone.outputs[0].labels]
    assert [(each["label"], each["score"]) for each in printed["labels"]] == expected
    assert sum(score for _, score in expected) != pytest.approx(1)
