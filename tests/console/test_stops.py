"""The console ends the calls that its user leaves. Without a browser: no model answers for long."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

CONSOLE = Path(__file__).parents[2] / "console"
PROGRAM = Path(__file__).with_name("stops.mjs")


@pytest.mark.skipif(shutil.which("node") is None, reason="node not found")
def test_calls_end_when_the_user_stops_or_leaves_them(tmp_path: Path) -> None:
    """By "Stop", by another task, and by another model."""
    for file in (*CONSOLE.glob("*.js"), PROGRAM):
        shutil.copy(file, tmp_path)
    (tmp_path / "package.json").write_text('{"type": "module"}', "utf-8")
    ran = subprocess.run(
        ["node", PROGRAM.name], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    assert json.loads(ran.stdout) == {"aborted": [True, True, True], "unhandled": []}
