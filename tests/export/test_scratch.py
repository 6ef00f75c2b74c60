"""Temporary folders of exports: removed at their end, or by the next export after a kill."""

import subprocess
import sys
from pathlib import Path

import pytest

from export.scratch import PREFIX, scratch_folder

ROOT = Path(__file__).resolve().parents[2]
HOLD = """
import sys
from pathlib import Path
from export.scratch import scratch_folder

with scratch_folder(Path(sys.argv[1])) as folder:
    (folder / "weights").write_bytes(b"1")
    print(folder.name, flush=True)
    sys.stdin.read()
"""


def hold(root: Path) -> "subprocess.Popen[str]":
    """A process that keeps a temporary folder until its input ends."""
    command = [sys.executable, "-c", HOLD, str(root)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT)


def test_the_folders_of_killed_exports_are_removed_and_of_running_ones_kept(tmp_path: Path) -> None:
    with hold(tmp_path) as killed, hold(tmp_path) as running:
        assert killed.stdout is not None
        assert running.stdout is not None
        left, used = killed.stdout.readline().strip(), running.stdout.readline().strip()
        assert {path.name for path in tmp_path.iterdir()} == {left, used}
        killed.kill()
        killed.wait()
        with scratch_folder(tmp_path) as folder:
            assert {path.name for path in tmp_path.iterdir()} == {used, folder.name}
            assert (tmp_path / used / "weights").read_bytes() == b"1"
        running.communicate("")
    assert list(tmp_path.iterdir()) == []


def test_other_files_stay(tmp_path: Path) -> None:
    (tmp_path / f"{PREFIX}notes").write_text("not a folder")
    (tmp_path / "model").mkdir()
    with scratch_folder(tmp_path) as folder:
        folder.rename(tmp_path / "kept")
    assert {path.name for path in tmp_path.iterdir()} == {f"{PREFIX}notes", "model", "kept"}


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_failure_removes_the_folder(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), scratch_folder(tmp_path):
        raise error
    assert list(tmp_path.iterdir()) == []
