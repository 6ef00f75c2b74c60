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
COMMANDS = re.findall(r"^\| ([^|]+) \| `triune ([^`]+)` \|$", PAGE, re.MULTILINE)
# In the answer to each task's command; the wording of int8 depends on the processor.
EXPECTED = {
    "generate": "light",
    "summarise": "ships",
    "summarise, software": "chess",
    "translate": "crianças",
    "translate, software": "documentazione",
    "correct": "She has gone to their house.",
    "embed": "384 dimensions",
    "rerank": "0  GNU Chess\n",
    "embed, sparse": "[chess ",
    "rerank, software": "0  GNU Chess is",
    "classify": "games 0.9",
    "classify an image": "docs/seven.png: 7 0.9",
    "tag": "GIVEN_NAME 1.000 11:14 Ann",
    "fill_mask": "city 0.",
    "transcribe": "John Dashwood",
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(int8_bundles: Path) -> Iterator[ServerProcess]:
    with server_process(int8_bundles) as running:
        yield running


def test_there_is_a_command_for_every_task() -> None:
    assert [task for task, _ in COMMANDS] == list(EXPECTED)


@pytest.mark.parametrize(("task", "command"), COMMANDS)
def test_a_command_answers(server: ServerProcess, task: str, command: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "triune", *shlex.split(command)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TRIUNE_TARGET": server.target},
    )
    assert ran.returncode == 0, ran.stderr
    assert EXPECTED[task] in ran.stdout
