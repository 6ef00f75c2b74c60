"""``python -m loadtest run`` against a real server."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from loadtest.cli import app
from tests.retrieval_models import MULTI_VECTOR, QUERY_LENGTH, SPARSE

pytestmark = pytest.mark.slow  # exports, or starts servers

ROOT = Path(__file__).parents[2]


def _run(target: str, out: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "loadtest", "run", "--target", target, "--json", str(out)]
    return subprocess.run(
        [*command, *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )


def _results(target: str, out: Path, *arguments: str) -> dict[str, Any]:
    """Runs the command in this process, which saves the time to start one."""
    options = ["--target", target, "--json", str(out), "--duration", "0.5", "--warmup", "0.2"]
    ran = CliRunner().invoke(app, ["run", *options, *arguments], catch_exceptions=False)
    assert ran.exit_code == 0, ran.stderr
    rates = re.search(r"([\d.]+) requests/s, ([\d.]+) texts/s", ran.stdout)
    assert rates is not None
    num_texts = 8 if "rerank" in arguments else 1
    assert float(rates[2]) == pytest.approx(num_texts * float(rates[1]), abs=0.05)
    results: dict[str, Any] = json.loads(out.read_text())
    return results


def test_closed_loop(target: str, tmp_path: Path) -> None:
    generate = ["--task", "generate", "--model", "tiny-decoder", "--lengths", "4-8"]
    results = _results(
        target, tmp_path / "out.json", *generate, "--concurrency", "2", "--max-new-tokens", "8"
    )
    assert results["requests"] > 0
    assert results["errors"] == {}
    assert results["duration_seconds"] == 0.5
    # Past end-of-sequence, so every request has all its tokens.
    assert results["output_tokens"] == 8 * results["requests"]
    assert results["requests_per_second"] > 0
    assert results["output_tokens_per_second"] > 0
    latency, first, gap = (
        results[f"{name}_seconds"] for name in ("latency", "first_token", "inter_token")
    )
    for percentiles in (latency, first, gap):
        assert 0 < percentiles["p50"] <= percentiles["p90"] <= percentiles["p99"]
    assert first["p50"] < latency["p50"]
    assert results["mode"] == "closed"
    assert results["arguments"]["concurrency"] == 2
    assert results["model"]["name"] == "tiny-decoder"
    assert results["machine"]["cores"] >= 1
    assert results["versions"]["grpcio"]


def test_open_loop(target: str, tmp_path: Path) -> None:
    results = _results(
        target,
        tmp_path / "out.json",
        *["--task", "translate", "--model", "dates", "--rate", "20", "--lengths", "4-8"],
        *["--max-new-tokens", "8"],
    )
    assert results["mode"] == "open"
    assert results["requests"] > 0
    assert results["latency_seconds"]["p50"] >= results["first_token_seconds"]["p50"]


@pytest.mark.parametrize(
    ("task", "model"),
    [
        ("embed", "embedder"),
        ("classify", "sorter"),
        ("tag", "tagger"),
        ("fill-mask", "filler"),
        ("answer", "answerer"),
        ("rerank", "judge"),
    ],
)
def test_all_tasks_of_encoders(encoders: str, tmp_path: Path, task: str, model: str) -> None:
    results = _results(
        encoders,
        tmp_path / "out.json",
        *["--task", task, "--model", model, "--lengths", "4-12", "--concurrency", "2"],
    )
    assert results["requests"] > 0
    assert results["errors"] == {}
    assert results["input_tokens"] > 4 * results["requests"]
    assert results["output_tokens"] == 0


@pytest.mark.parametrize("model", [SPARSE, MULTI_VECTOR])
def test_embeddings_of_other_kinds(retrieval: str, tmp_path: Path, model: str) -> None:
    options = ["--model", model, "--lengths", "4-6"]
    out, embed = tmp_path / "out.json", ["--task", "embed", *options]
    results = {
        input_type: _results(retrieval, out, *embed, "--input-type", input_type)
        for input_type in ("document", "query")
    }
    assert all(each["requests"] > 0 for each in results.values())
    assert all(each["errors"] == {} for each in results.values())
    queries = results["query"]
    assert queries["arguments"]["input_type"] == "query"
    if model == MULTI_VECTOR:  # fills queries up
        assert queries["input_tokens"] == QUERY_LENGTH * queries["requests"]
    ranked = _results(retrieval, out, "--task", "rerank", *options)
    assert ranked["errors"] == {}
    assert ranked["texts_per_request"] == 8


def test_only_embeddings_have_an_input_type(retrieval: str, tmp_path: Path) -> None:
    arguments = ["--task", "rerank", "--model", SPARSE, "--input-type", "query"]
    ran = _run(retrieval, tmp_path / "out.json", *arguments)
    assert ran.returncode == 2
    assert "--input-type needs --task embed" in ran.stderr


@pytest.mark.parametrize("model", ["tiny-decoder", "dates"])
def test_scores(target: str, tmp_path: Path, model: str) -> None:
    results = _results(
        target,
        tmp_path / "out.json",
        *["--task", "score", "--model", model, "--lengths", "4-8"],
    )
    assert results["requests"] > 0
    assert results["errors"] == {}


def test_lines_of_a_file_are_sent_whole(target: str, tmp_path: Path) -> None:
    prompts = tmp_path / "dates.txt"
    prompts.write_text("3 March 2021\n", encoding="utf-8")
    results = _results(
        target,
        tmp_path / "out.json",
        *["--task", "translate", "--model", "dates", "--prompts", str(prompts)],
    )
    tokens = len("2021-03-03") + 1
    assert results["output_tokens"] == tokens * results["requests"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "generate", "--model", "no-such-model"], "NOT_FOUND"),
        (["--task", "embed", "--model", "dates"], "does not support embed"),
        (["--task", "fill-mask", "--model", "tiny-decoder"], "does not support fill-mask"),
    ],
)
def test_a_plan_that_cannot_run_is_one_line_of_error(
    target: str, tmp_path: Path, arguments: list[str], message: str
) -> None:
    ran = _run(target, tmp_path / "out.json", *arguments)
    assert ran.returncode == 1
    assert ran.stderr.startswith("error: ")
    assert message in ran.stderr
    assert ran.stderr.count("\n") == 1
    assert not (tmp_path / "out.json").exists()


def test_a_run_in_which_nothing_succeeds_fails(target: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    arguments = ["--task", "translate", "--model", "dates", "--duration", "0.5", "--warmup", "0"]
    ran = _run(target, out, *arguments, "--lengths", "100000")
    assert ran.returncode == 1
    assert json.loads(out.read_text())["errors"].keys() == {"INVALID_ARGUMENT"}
    assert "no request succeeded" in ran.stderr
