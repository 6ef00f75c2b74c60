"""Every target takes what was found before, and some thousand inputs of a fixed seed.

Long runs are made by hand: ``python -m tests.fuzz --all --seconds 1200``.
"""

import importlib.util
import random
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.registry import CORPUS, ROOT, TARGETS, Target, cases, load

NUM_EXAMPLES = 40
NUM_RUNS = 300
needs_atheris = pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None, reason="atheris has no wheel for this Python"
)


@st.composite
def changed(draw: st.DrawFn, seeds: list[bytes], size: int) -> bytes:
    """A seed with some bytes overwritten, put in, taken out or doubled; or any bytes."""
    data = bytearray(draw(st.sampled_from(seeds)))
    if draw(st.integers(0, 9)) == 0:
        data = bytearray(draw(st.binary(max_size=64)))
    rng = random.Random(draw(st.integers(0, 2**32 - 1)))
    for _ in range(draw(st.integers(0, 6))):
        at, count = rng.randrange(len(data) + 1), rng.choice((1, 2, 4, 8, 16))
        part = rng.choice((rng.randbytes(count), b"", bytes(data[at : at + count]) * 2))
        data[at : at + rng.choice((0, count))] = part
    return bytes(data[:size])


def failure(target: Target, data: bytes) -> str:
    """How ``target`` fails on ``data``; empty if it does not."""
    try:
        target.run(data)
    except Exception:
        return f"{data!r}\n{traceback.format_exc()}"
    return ""


@pytest.mark.parametrize("name", TARGETS)
def test_changed_seeds(name: str) -> None:
    target = load(name)

    @settings(
        max_examples=NUM_EXAMPLES,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(changed(list(target.seeds()), target.SIZE))
    def check(data: bytes) -> None:
        assert not failure(target, data)

    check()


@pytest.mark.parametrize("name", TARGETS)
def test_what_was_found_before(name: str) -> None:
    target = load(name)
    failures = {case.name: failure(target, case.read_bytes()) for case in cases(name)}
    assert not any(failures.values()), "\n".join(filter(None, failures.values()))


def test_every_case_is_of_a_target() -> None:
    assert {path.name for path in CORPUS.iterdir()} <= set(TARGETS)


def fuzz(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "tests.fuzz", "--folder", str(folder), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@needs_atheris
def test_a_short_run_of_every_target_finds_nothing(tmp_path: Path) -> None:
    ran = fuzz(tmp_path, "--all", "--runs", str(NUM_RUNS))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert [line.split()[0] for line in ran.stdout.splitlines()] == list(TARGETS)


@needs_atheris
def test_a_planted_defect_is_found(tmp_path: Path) -> None:
    ran = fuzz(tmp_path, "tests.fuzz.planted", "--runs", "100000")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "crash-" in ran.stdout
