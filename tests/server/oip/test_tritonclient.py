"""The public client ``tritonclient``, unmodified, in an environment of its own."""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtest.compare.environments import Environment
from loadtest.compare.prepare import prepare
from tests.pictures import encoded, picture
from tests.server.oip.conftest import Doors

BUILD = Path(__file__).resolve().parents[3] / "build"
# It wants protobuf < 7, and has messages of the same package as ours.
CLIENT = Environment(name="tritonclient", requirements=("tritonclient[grpc,http]==2.73.0",))
PROGRAM = Path(__file__).with_name("tritonclient_program.py")
ISO = "2021-03-03"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(doors: Doors) -> Any:
    """What the client got."""
    assert prepare([CLIENT], (), BUILD, print)
    running = doors.running
    ports = (running.port, running.admin_port, running.http_port)
    addresses = [f"127.0.0.1:{port}" for port in ports]
    result = subprocess.run(
        [CLIENT.python(BUILD / "peers"), PROGRAM, *addresses, encoded(picture())],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_calls_of_both_protocols(doors: Doors, found: Any, protocol: str) -> None:
    answers = found[protocol]
    assert answers["live"]
    assert answers["ready"]
    assert answers["model_ready"]
    assert not answers["unknown_ready"]
    assert answers["translation"] == answers["async"] == [ISO]
    vectors = [output.values for output in doors.ours.embed("embedder", ["a", "b"]).outputs]
    assert answers["vectors"] == np.array(vectors, np.float32).ravel().tolist()
    vector = np.array(doors.ours.embed("vit-embed", picture()).outputs[0].values, np.float32)
    assert answers["image"] == vector.tolist()
    ranked = {
        x.index: x.score for x in doors.ours.rerank("judge", "paris", ["a city", "a name"]).outputs
    }
    assert answers["scores"] == np.array([ranked[0], ranked[1]], np.float32).tolist()
    labels = doors.ours.classify("sorter", ["a"]).outputs[0].labels
    assert answers["labels"] == [label.label for label in labels]
    assert answers["num_output_tokens"] == [3]
    assert (answers["no_spans"], answers["no_labels"]) == ([0, 3], [0])
    status, message = answers["error"]
    assert status in ("StatusCode.INVALID_ARGUMENT", "400")
    assert message.startswith("pixels: is not an input of translate")
    assert answers["metadata"]["inputs"][0]["name"] == "text_input"
    assert answers["server"] == "triune"
    assert {"dates", "embedder"} <= set(answers["index"])
    (statistics,) = answers["statistics"]["model_stats"]
    assert int(statistics["inference_stats"]["success"]["count"]) > 0


def test_json_has_images_in_base64(found: Any) -> None:
    assert found["http"]["json_image"] == found["http"]["image"]


def test_streams(found: Any) -> None:
    streamed = found["grpc"]["streamed"]
    for pieces in streamed["pieces"].values():
        assert "".join(pieces) == ISO
        assert len(pieces) > 3
    assert "'nobody' is not served" in streamed["errors"][0]
    assert "".join(found["aio"]["pieces"]) == ISO
    assert found["aio"]["translation"] == found["http_aio"]["translation"] == [ISO]
    assert found["http"]["json"] == [ISO]
    assert found["grpc"]["config"]["config"]["model_transaction_policy"] == {"decoupled": True}


def test_models_are_unloaded_and_loaded(found: Any) -> None:
    assert found["grpc"]["unloaded"]
    assert found["grpc"]["loaded"]
