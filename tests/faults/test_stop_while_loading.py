"""Signals while a bundle is loaded: the server does not wait for the load."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.faulty_server import HANGING, NEVER_LOADED
from tests.faults.serving import DECODER, faulty_server
from tests.server.damaged_bundles import rename

pytestmark = pytest.mark.slow  # starts several processes


def add_a_load_that_hangs(bundles: Path, root: Path) -> None:
    """Copies a bundle to ``root``, under the name of a model that is never loaded."""
    copy = root / NEVER_LOADED / "1"
    shutil.copytree(bundles / DECODER / "1", copy)
    rename(copy, NEVER_LOADED)


def wait_for_line(process: "subprocess.Popen[str]", text: str) -> None:
    assert process.stderr is not None
    assert any(text in line for line in process.stderr)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_the_start_ends_it(
    tiny_bundles: Path, tmp_path: Path, number: signal.Signals
) -> None:
    add_a_load_that_hangs(tiny_bundles, tmp_path)
    shutil.copytree(tiny_bundles / DECODER, tmp_path / DECODER)
    command = [sys.executable, "-m", "tests.faults.faulty_server", "--bundles", str(tmp_path)]
    command += ["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--http", "none"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_for_line(process, HANGING)
            process.send_signal(number)
            _, log = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0
    assert "stopping during the start" in log
    assert "loaded" not in log


def test_a_server_that_stops_does_not_wait_for_a_load(tiny_bundles: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_bundles / DECODER, tmp_path / DECODER)
    with faulty_server(tmp_path, "--watch", "0.1") as server:
        add_a_load_that_hangs(tiny_bundles, tmp_path)
        wait_for_line(server.process, HANGING)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=60) == 0
