"""The commands of ``docs/models.md`` against the default models."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving import ServerProcess, server_process

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "models.md").read_text("utf-8")
COMMANDS = re.findall(r"^\|[^|]+\| `triune ([^`]+)` \|$", PAGE, re.MULTILINE)
# In the answer of each model.
EXPECTED = {
    "smollm2": " ",
    "en-pt": "crianças",
    "debian-en-it": "documentazione",
    "grammar": "gone",
    "minilm": "A ",
    "debian-sections": "games",
    "pii": "Ann",
    "bert-tiny": "0.",
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(int8_bundles: Path) -> Iterator[ServerProcess]:
    with server_process(int8_bundles) as running:
        yield running


def test_there_is_a_command_for_every_task() -> None:
    assert len(COMMANDS) == 10


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_answers(server: ServerProcess, command: str) -> None:
    words = shlex.split(command)
    ran = subprocess.run(
        [sys.executable, "-m", "triune", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TRIUNE_TARGET": server.target},
    )
    assert ran.returncode == 0, ran.stderr
    assert EXPECTED[words[words.index("--model") + 1]] in ran.stdout
