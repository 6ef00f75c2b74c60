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


def test_the_folders_of_killed_exports_are_removed_and_of_running_ones_kept(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
    with (
        subprocess.Popen(command, **pipes) as killed,  # type: ignore[call-overload]
        subprocess.Popen(command, **pipes) as running,  # type: ignore[call-overload]
    ):
        left, used = (process.stdout.readline().strip() for process in (killed, running))
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
