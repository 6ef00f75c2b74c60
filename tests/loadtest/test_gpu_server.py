"""``loadtest gpu-server``: a whole run on the CPU, and what it calls right."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest

from client.errors import TriuneError
from loadtest.compare.errors import WorkerError
from loadtest.gpu.memory_requests import are_same, outcome
from loadtest.gpu.served import Served
from loadtest.gpu.server_runs import PARTS
from loadtest.tasks import Task

ROOT = Path(__file__).resolve().parents[2]
TASKS = ("generate", "translate", "embed")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "loadtest", "gpu-server", "--device", "cpu", *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
    )


@pytest.fixture(scope="module")
def bundles(
    tiny_bundles: Path, head_bundles: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("three") / "bundles"
    for path in (tiny_bundles / "tiny-decoder", tiny_bundles / "dates", head_bundles / "embedder"):
        shutil.copytree(path, folder / path.name)
    return folder


def test_every_part_runs_on_a_cpu(bundles: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    ran = run(
        *("--out", str(out), "--bundles", str(bundles), "--root", str(tmp_path)),
        *("--clients", "1,3", "--duration", "0.3", "--soak-s", "2", "--budget-s", "240"),
        *("--slots", "4", "--too-many-slots", "8", "--longest", "16"),
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(out.read_text())["server"]
    assert found["reasons"] == {}
    assert set(PARTS) < set(found["part_seconds"])
    expected = {f"{task}-{kind}" for task in TASKS for kind in ("1", "3", "beside")}
    expected |= {f"{kind}-{task}" for task in TASKS for kind in ("oom", "after", "soak")}
    assert set(found["runs"]) == expected
    for name, row in found["runs"].items():
        assert row.get("errors") == {}, (name, row)
        if row["requests"]:  # a slow machine may answer none of many clients in so short a time
            assert row["latency_seconds"]["p50"] <= row["latency_seconds"]["p99"]
    assert all(found["runs"][f"{task}-1"]["requests"] for task in TASKS)
    assert found["runs"]["generate-1"]["output_tokens_per_second"] > 0
    assert found["runs"]["soak-embed"]["seconds"] == 2
    assert found["seconds_until_ready"] > 0
    assert found["seconds_until_ready_after_kill"] > 0
    same = dict.fromkeys(TASKS, True)
    assert found["killed"]["same_answers"] == same
    assert set(found["killed"]["clients"]["errors"]) == {"UNAVAILABLE"}
    memory = found["out_of_memory"]
    assert memory["same_answers"] == memory["same_answers_after"] == same
    for requests in (memory["large_requests"], memory["large_requests_after"]):
        assert [request["code"] for request in requests.values()] == ["OK"] * 3
    assert found["too_many_slots"]["models"]["dates"] == {"slots": 8}
    assert set(found["soak"]["memory"]) == {"start", "middle", "end"}
    assert found["answers_at_the_end"] == same
    assert found["end"] == "ended with status 0"


def test_a_part_that_fails_has_a_reason(tmp_path: Path) -> None:
    (tmp_path / "bundles" / "damaged" / "1").mkdir(parents=True)
    out = tmp_path / "out.json"
    ran = run(
        *("--out", str(out), "--bundles", str(tmp_path / "bundles"), "--root", str(tmp_path)),
        *("--only", "loads", "--clients", "1"),
    )
    assert ran.returncode == 1
    reason = json.loads(out.read_text())["server"]["reasons"]["start"]
    assert "no bundle in" in reason


def test_a_server_that_is_not_ready_in_time_is_an_error(bundles: Path, tmp_path: Path) -> None:
    server = Served(bundles, "cpu", (), tmp_path / "server.log")
    with pytest.raises(WorkerError, match="not ready within 0 s"):
        server.wait_until_ready(0.0)
    server.kill()
    assert not server.is_alive
    assert server.memory() == {"resident_bytes": None, "gpu_bytes": None}


def raises(code: grpc.StatusCode, message: str) -> Any:
    def call() -> None:
        raise TriuneError(code, message)

    return call


@pytest.mark.parametrize(
    ("code", "message", "is_right"),
    [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "the device has not enough free memory", True),
        (grpc.StatusCode.UNAVAILABLE, "no memory", True),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full", False),
        (grpc.StatusCode.INTERNAL, "the model run failed", False),
        (grpc.StatusCode.UNAVAILABLE, "the connection was lost", False),
    ],
)
def test_a_failure_must_allow_a_retry_and_name_the_memory(
    code: grpc.StatusCode, message: str, *, is_right: bool
) -> None:
    found = outcome(raises(code, message))
    assert (found["code"], found["message"]) == (code.name, message)
    assert found["is_right"] is is_right
    assert outcome(lambda: None)["is_right"] is True


def test_answers_are_compared() -> None:
    before = {Task.EMBED: [1.0, 0.0], Task.GENERATE: [1, 2], Task.TRANSLATE: [3]}
    after = {Task.EMBED: [0.9999, 0.01], Task.GENERATE: [1, 3], Task.TRANSLATE: "UNAVAILABLE: x"}
    assert are_same(before, after) == {
        Task.EMBED: True,
        Task.GENERATE: False,
        Task.TRANSLATE: "UNAVAILABLE: x",
    }
    assert are_same({Task.EMBED: [1.0, 0.0]}, {Task.EMBED: [0.0, 1.0]}) == {Task.EMBED: False}
    assert are_same({Task.GENERATE: "an error"}, {Task.GENERATE: [1]}) == {Task.GENERATE: False}
