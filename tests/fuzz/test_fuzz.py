"""Runs every target on its regression corpus and on mutated seeds with a fixed random seed.

Start long runs manually: ``python -m tests.fuzz --all --seconds 1200``.
"""

import importlib.util
import os
import random
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.files import scratch, scratch_of_fork
from tests.fuzz.registry import CORPUS, ROOT, TARGETS, Target, cases, load

NUM_EXAMPLES = 40
NUM_RUNS = 300
needs_atheris = pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None, reason="atheris has no wheel for this Python"
)


@st.composite
def mutated_seeds(draw: st.DrawFn, seeds: list[bytes], size: int) -> bytes:
    """A seed with bytes overwritten, inserted, deleted or duplicated; or random bytes."""
    data = bytearray(draw(st.sampled_from(seeds)))
    if draw(st.integers(0, 9)) == 0:
        data = bytearray(draw(st.binary(max_size=64)))
    rng = random.Random(draw(st.integers(0, 2**32 - 1)))
    for _ in range(draw(st.integers(0, 6))):
        position, count = rng.randrange(len(data) + 1), rng.choice((1, 2, 4, 8, 16))
        replacement = rng.choice(
            (rng.randbytes(count), b"", bytes(data[position : position + count]) * 2)
        )
        data[position : position + rng.choice((0, count))] = replacement
    return bytes(data[:size])


def failure(target: Target, data: bytes) -> str:
    """The traceback if ``target`` fails on ``data``; else empty."""
    try:
        target.run(data)
    except Exception:
        return f"{data!r}\n{traceback.format_exc()}"
    return ""


@pytest.mark.parametrize("name", TARGETS)
def test_targets_accept_mutated_seeds(name: str) -> None:
    target = load(name)

    @settings(
        max_examples=NUM_EXAMPLES,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(mutated_seeds(list(target.seeds()), target.SIZE))
    def check(data: bytes) -> None:
        assert not failure(target, data)

    check()


@pytest.mark.parametrize("name", TARGETS)
def test_targets_accept_the_regression_corpus(name: str) -> None:
    target = load(name)
    failures = {case.name: failure(target, case.read_bytes()) for case in cases(name)}
    assert not any(failures.values()), "\n".join(filter(None, failures.values()))


def test_corpus_folders_match_targets() -> None:
    assert {path.name for path in CORPUS.iterdir()} <= set(TARGETS)


def run_fuzzer(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "tests.fuzz", "--folder", str(folder), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@needs_atheris
@pytest.mark.slow
def test_short_fuzzing_run_finds_nothing(tmp_path: Path) -> None:
    completed = run_fuzzer(tmp_path, "--all", "--runs", str(NUM_RUNS))
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert [line.split()[0] for line in completed.stdout.splitlines()] == list(TARGETS)


@needs_atheris
def test_fuzzing_finds_a_planted_defect(tmp_path: Path) -> None:
    completed = run_fuzzer(tmp_path, "tests.fuzz.planted", "--runs", "100000")
    assert completed.returncode == 1, completed.stdout + completed.stderr
    assert "crash-" in completed.stdout


def test_scratch_folders_of_a_fork_are_deleted(tmp_path: Path) -> None:
    told = tmp_path / "path"
    with scratch_of_fork():
        child = os.fork()
        if child == 0:
            told.write_text(str(scratch("fork")), "utf-8")
            os._exit(0)
        os.waitpid(child, 0)
        folder = Path(told.read_text("utf-8"))
        assert folder.is_dir()
    assert not folder.exists()
