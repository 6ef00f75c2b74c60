"""ONNX Runtime's telemetry is off: nothing is written below HOME, and no name is resolved."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from client.sync import Client
from tests.faults.record import record
from tests.serving import server_process

STRACE = shutil.which("strace")
# Everything but a socket of this machine: ports of DNS and of HTTPS included.
REMOTE = re.compile(r"connect\(.*(?:sin_addr|inet_pton\(AF_INET6).*")
LOCAL = ('inet_addr("127.0.0.1")', '"::1"')


# ONNX Runtime sends nothing where one of these says that it is tested.
CI_VARIABLES = (
    *("CI", "TF_BUILD", "GITHUB_ACTIONS", "GITLAB_CI", "CIRCLECI", "TRAVIS", "JENKINS_URL"),
    *("CODEBUILD_BUILD_ID", "BUILDKITE", "TEAMCITY_VERSION", "APPVEYOR", "BITBUCKET_BUILD_NUMBER"),
)


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An empty home directory, without the variables that conftest.py or a CI machine sets."""
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", *CI_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "home").mkdir()
    return {"HOME": str(tmp_path / "home")}


def files(environment: dict[str, str]) -> list[Path]:
    return [path for path in Path(environment["HOME"]).rglob("*") if path.is_file()]


def test_the_server_writes_nothing_below_home(bundles: Path, environment: dict[str, str]) -> None:
    with server_process(bundles, **environment) as running, Client(running.target) as client:
        assert client.classify("tiny-classifier", "12").outputs
    written = files(environment)
    record(
        20,
        "a library with telemetry of its own, in an empty home folder",
        "the server writes nothing below home",
        files_written=len(written),
    )
    assert written == []


def test_telemetry_can_be_switched_on(bundles: Path, environment: dict[str, str]) -> None:
    """This also shows that the other tests can fail."""
    with server_process(bundles, **environment, ORT_DISABLE_TELEMETRY="0"):
        pass
    assert "deviceid" in {path.name for path in files(environment)}


@pytest.mark.slow
@pytest.mark.skipif(STRACE is None, reason="strace is not installed")
def test_the_server_connects_to_nobody(
    bundles: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    # -D: the server stays the child, which gets the signals.
    wrapper = [
        str(STRACE),
        "-D",
        "-f",
        "-qq",
        "-e",
        "trace=connect,sendto,sendmmsg",
        "-o",
        str(trace),
    ]
    with (
        server_process(bundles, wrapper=wrapper, **environment) as running,
        Client(running.target) as client,
    ):
        assert client.classify("tiny-classifier", "12").outputs
    remote = [
        line
        for line in trace.read_text().splitlines()
        if REMOTE.search(line) and not any(address in line for address in LOCAL)
    ]
    assert trace.stat().st_size > 0
    assert remote == []


@pytest.mark.slow
def test_an_export_writes_nothing_below_home(environment: dict[str, str], tmp_path: Path) -> None:
    from tests.export.importers.support import save  # noqa: PLC0415  (imports torch)
    from tests.export.importers.test_llama import llama  # noqa: PLC0415

    (tmp_path / "source").mkdir()
    save(llama(), tmp_path / "source")
    command = [sys.executable, "-m", "export", str(tmp_path / "source")]
    command += ["--out", str(tmp_path / "bundles" / "llama"), "--precision", "fp32"]
    subprocess.run(command, check=True, env={**os.environ, **environment})
    assert (tmp_path / "bundles" / "llama" / "1" / "bundle.json").exists()
    assert files(environment) == []
