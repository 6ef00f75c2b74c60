"""``loadtest gpu``: its plan, its rates, and a whole run on the CPU."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loadtest.compare.errors import InvalidResultError
from loadtest.gpu.benchmark import add, first_seconds, rate_of, step_seconds
from loadtest.gpu.deadline import Deadline, OutOfTimeError
from loadtest.gpu.full_plan import PEERS, make_plan
from loadtest.gpu.model_sizes import BENCHMARK_SIZES, SIZES, Family
from loadtest.gpu.parity import compare_logprobs, compare_totals, compare_vectors, dense
from loadtest.gpu.plan import OURS, Benchmark, CacheStep, Part, PlanSize
from loadtest.gpu.report import NOT_MEASURED, Report
from loadtest.gpu.roofline import roofline_rate

ROOT = Path(__file__).resolve().parents[2]
CEILINGS = {
    "bytes_per_second": 4e12,
    "operations_per_second": {"fp32": 5e13, "fp16": 8e14, "bf16": 8e14},
}


def benchmark(name: str, **changes: Any) -> Benchmark:
    fields = {"batches": (1,), "num_tokens": 128, "num_new_tokens": 64, "rounds": 3}
    return Benchmark(**{"size": SIZES[name], "precision": "fp16", **fields, **changes})


# --- the plan -------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
@pytest.mark.parametrize("extent", PlanSize)
def test_every_family_is_checked_and_measured(device: str, extent: PlanSize) -> None:
    plan = make_plan(device, extent)
    assert {check.size.family for check in plan.checks} == set(Family)
    assert {each.size.family for each in plan.benchmarks} == set(Family)
    titles = [f"{part}: {item.title}" for part, item in plan.items]
    for names in ([check.name for check in plan.checks], titles):
        assert len(set(names)) == len(names)
    assert any(check.kv_cache == "int8" for check in plan.checks)
    precisions = {check.precision for check in plan.checks} | {s.precision for s in plan.benchmarks}
    assert ("fp32" in precisions) == (device == "cpu")


def test_the_full_plan_covers_all_precisions_and_sizes() -> None:
    plan = make_plan("cuda", PlanSize.FULL)
    assert {check.precision for check in plan.checks} == {"fp16", "bf16", "int8", "int4"}
    names = {each.size.name for each in plan.benchmarks}
    assert names == {size.name for size in BENCHMARK_SIZES}
    plain = [each for each in plan.benchmarks if each.title == f"{each.size.name}, fp16"]
    generating = {size.name for size in BENCHMARK_SIZES if size.family != Family.ENCODER}
    assert {each.size.name for each in plain} == generating
    assert all((min(each.batches), max(each.batches)) == (1, 256) for each in plain)


def test_the_most_valuable_parts_are_first() -> None:
    parts = list(dict.fromkeys(part for part, _ in make_plan("cuda", PlanSize.FULL).items))
    assert parts[:4] == [Part.STEPS, Part.PROFILE, Part.ENCODERS, Part.PEERS]
    assert set(parts) == set(Part) - {Part.CHECKS}


def test_every_peer_runs_beside_our_engine_and_has_a_time_limit() -> None:
    plan = make_plan("cuda", PlanSize.FULL)
    ours = {
        (each.name, batch)
        for each in plan.benchmarks
        if each.engine == OURS
        for batch in each.batches
    }
    peers = [each for each in plan.benchmarks if each.engine != OURS]
    assert {each.engine for each in peers} == {name for names in PEERS.values() for name in names}
    for each in peers:
        assert ours >= {(each.name, batch) for batch in each.batches}
        assert each.limit_seconds < math.inf


def test_each_bundle_is_made_once() -> None:
    plan = make_plan("cuda", PlanSize.FULL)
    forms = [(each.size.name, each.precision, each.kv_cache) for each in plan.bundles]
    assert len(set(forms)) == len(forms) == 9
    assert ("llama-1.1b", "fp16", "int8") in forms


def test_few_and_many_rows_are_checked() -> None:
    plan = make_plan("cuda", PlanSize.FULL)
    ahead = [check for check in plan.checks if not check.with_logprobs and "ahead" in check.label]
    rows = {check.num_rows for check in ahead if check.precision == "fp16"}
    assert min(rows) == 1
    assert max(rows) > 64
    assert any(1 < number <= 8 for number in rows)
    assert any(8 < number <= 64 for number in rows)
    assert any(check.beams > 1 for check in plan.checks)


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("llama-1.1b", 1100),
        ("llama-135m", 163),  # SmolLM2's shape with an untied output projection
        ("bert-base", 110),
        ("bert-large", 335),
        ("transformer-base", 60),
        ("transformer-big", 210),
    ],
)
def test_sizes_match_their_names(name: str, millions: int) -> None:
    size = SIZES[name]
    hidden = size.config.get("hidden_size") or size.config["d_model"]
    embedding = hidden * size.config["vocab_size"]
    # An encoder-decoder's output projection is its embedding.
    embedding *= size.family != Family.ENCODER_DECODER
    total = (size.encoder + size.decoder + embedding) / 1e6
    assert total == pytest.approx(millions, rel=0.05)


# --- rates and reports ----------------------------------------------------------------------


def test_the_roofline_of_a_decode_reads_weights_and_cache() -> None:
    size = SIZES["llama-1.1b"]
    read = 2 * size.decoder + 2 * size.cache_values * (128 + 32)
    assert roofline_rate(benchmark("llama-1.1b"), 1, "cuda", CEILINGS) == pytest.approx(4e12 / read)
    of_bytes = benchmark("llama-1.1b", kv_cache="int8", precision="int8")
    read = size.decoder + size.cache_values * (128 + 32)
    assert roofline_rate(of_bytes, 1, "cuda", CEILINGS) == pytest.approx(4e12 / read)


def test_the_roofline_of_an_encoder_is_arithmetic() -> None:
    each = benchmark("bert-base", num_tokens=512, num_new_tokens=0)
    expected = 8e14 / (2 * SIZES["bert-base"].encoder)
    assert roofline_rate(each, 64, "cuda", CEILINGS) == pytest.approx(expected)
    on_cpu = roofline_rate(each, 64, "cpu", CEILINGS)
    assert on_cpu == pytest.approx(expected * 5e13 / 8e14)


def test_a_decoders_rate_starts_when_each_sequence_has_a_token() -> None:
    each = benchmark("llama-135m", num_new_tokens=3)
    arrivals = [[1.0, 2.0, 3.0], [1.5, 2.5, 3.5]]
    assert rate_of(each, 2, {"arrivals": arrivals}) == pytest.approx(4 / 2.0)
    assert step_seconds({"arrivals": arrivals}) == 1.0
    with pytest.raises(InvalidResultError, match="got 5 of 6 tokens"):
        rate_of(each, 2, {"arrivals": [[1.0, 2.0, 3.0], [1.5, 2.5]]})


def test_an_encoders_rate_counts_input_tokens() -> None:
    each = benchmark("bert-base", num_tokens=16, num_new_tokens=0)
    assert rate_of(each, 4, {"seconds": 2.0, "num_tokens": 64}) == 32.0
    with pytest.raises(InvalidResultError):
        rate_of(each, 4, {"seconds": 2.0, "num_tokens": 63})


def test_engines_share_a_row_in_any_order() -> None:
    theirs = benchmark("bert-base", num_tokens=16, num_new_tokens=0, engine="a")
    ours = benchmark("bert-base", num_tokens=16, num_new_tokens=0)
    of_peer = [{"seconds": seconds, "num_tokens": 64} for seconds in (16.0, 12.8, 10.0)]
    of_ours = [{"seconds": seconds, "num_tokens": 64} for seconds in (6.4, 8.0, 4.0)]
    measured = [(theirs, of_peer), (ours, of_ours)]
    rows: list[dict[str, Any]] = [{}, {"reasons": {"b": "no"}}]
    for row, order in zip(rows, (measured, measured[::-1]), strict=True):
        for each, replies in order:
            add(row, each, 4, replies, 20.0)
        assert row["tokens_per_second"] == {"a": 5.0, OURS: 10.0}
        assert row["ratio_to"] == {"a": 2.0}
        assert row["part_of_best_possible"] == 0.5
    assert rows[1]["reasons"] == {"b": "no"}


def test_a_decoders_row_has_its_step_and_first_tokens() -> None:
    row: dict[str, Any] = {}
    replies = [{"arrivals": [[1.0, 2.0, 3.0], [1.5, 2.5, 3.5]]}]
    add(row, benchmark("llama-135m", num_new_tokens=3), 2, replies, 4.0)
    assert (row["step_seconds"], row["first_token_seconds"]) == (1.0, 1.5)
    assert first_seconds(replies[0]) == 1.5


def logprobs(*values: float) -> dict[str, list[list[float]]]:
    return {"logprobs": [list(values)]}


@pytest.mark.parametrize(
    ("ours", "best", "passed"),
    [
        ((-1.0, -2.0), (-1.0, -2.0), True),
        ((-1.0, -2.005), (-0.995, -2.0), True),  # within the tolerance, also of a tie
        ((-1.0, -2.2), (-1.0, -2.0), False),  # another probability
        ((-1.0, -2.0), (-1.0, -1.5), False),  # another token was more likely
        ((-1.0, math.nan), (-1.0, -2.0), False),
    ],
)
def test_tokens_are_compared_with_the_reference(
    ours: tuple[float, ...], best: tuple[float, ...], passed: bool
) -> None:
    theirs = {**logprobs(-1.0, -2.0), "best": [list(best)]}
    assert compare_logprobs(logprobs(*ours), theirs, 0.01)["passed"] is passed


@pytest.mark.parametrize(("best", "passed"), [(-1.0, True), (-0.5, False)])
def test_tokens_without_logprobs_are_compared_with_the_reference(best: float, passed: bool) -> None:
    theirs = {**logprobs(-1.0), "best": [[best]]}
    assert compare_logprobs({"logprobs": [[]]}, theirs, 0.01)["passed"] is passed


@pytest.mark.parametrize(
    ("ours", "passed"), [((-1.0, -2.0), True), ((-0.5, -2.0), True), ((-1.0, -2.3), False)]
)
def test_a_search_may_find_better_sequences(ours: tuple[float, ...], passed: bool) -> None:
    theirs = [(-1.0, -1.0), (-1.0, -2.0)]
    found = compare_totals([(-1.0, -1.0), ours], theirs, 0.1)
    assert found["passed"] is passed
    assert found["tokens"] == 4


def test_sparse_vectors_become_dense() -> None:
    assert dense([[1.5, 2.5], []], [[0, 2], []], 3) == [[1.5, 0.0, 2.5], [0.0, 0.0, 0.0]]


def test_vectors_are_compared_with_the_reference() -> None:
    assert compare_vectors([[1.0, 0.0]], [[2.0, 0.0]], 1e-6)["passed"]
    assert not compare_vectors([[1.0, 0.1]], [[1.0, 0.0]], 1e-3)["passed"]


def test_a_deadline_passes() -> None:
    now = [10.0]
    deadline = Deadline(5, lambda: now[0])
    now[0] = 14.0
    assert deadline.remaining_seconds() == 1.0
    now[0] = 15.0
    with pytest.raises(OutOfTimeError):
        deadline.remaining_seconds()


def test_a_report_continues_only_for_the_same_device(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    report = Report(path, "cuda")
    report.add_check("x", {"passed": False})
    report.benchmark("y")["rows"]["1"] = {}
    report.save()
    again = Report(path, "cuda")
    assert again.failed_checks == ["x"]
    assert again.benchmark("y")["rows"] == {"1": {}}
    other = Report(path, "cpu")
    assert other.check("x") is None
    assert other.get("note") == NOT_MEASURED


# --- a whole run ----------------------------------------------------------------------------


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """On one core: tests run on the others."""
    core = str(min(os.sched_getaffinity(0)))
    command = ["taskset", "--cpu-list", core, sys.executable, "-m", "loadtest", "gpu", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_run_on_the_cpu_and_again_from_its_report(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    arguments = ["--device", "cpu", "--sizes", "tiny", "--out", str(out)]
    arguments += ["--root", str(tmp_path / "root")]
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    assert NOT_MEASURED in done.stderr
    report = json.loads(out.read_text())
    assert report["note"] == NOT_MEASURED
    assert report["finished"] is True
    assert report["machine"]["versions"]["torch"]
    assert report["ceilings"]["bytes_per_second"] > 0
    plan = make_plan("cpu", PlanSize.TINY)
    assert list(report["checks"]) == [check.name for check in plan.checks]
    (step,) = (item for _, item in plan.items if isinstance(item, CacheStep))
    row = report["caches"][step.name]
    assert row["slots"]["passed"] is True
    assert row["slots"]["max_error"] < 1e-5
    assert "PagedAttention" in row["paged"]["reason"]  # a CPU has no kernel for it
    assert all(found["passed"] for found in report["checks"].values())
    for each in plan.benchmarks:
        found = report["speed"][each.name]
        assert list(found["rows"]) == [str(batch) for batch in each.batches]
        for measured in found["rows"].values():
            runs = measured["tokens_per_second"].get(each.engine, 0) > 0
            assert runs or found["reasons"].get(each.engine) or measured["reasons"][each.engine]
            assert runs or each.engine not in (OURS, "transformers_engine")
        assert f"steps: {each.name}" in done.stderr
    before = out.read_text()
    assert run(*arguments).returncode == 0
    assert out.read_text() == before


def test_a_missing_gpu_is_an_error(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    arguments = ("--sizes", "tiny", "--out", str(out), "--root", str(tmp_path))
    done = run("--device", "cuda:63", *arguments)
    assert done.returncode == 1
    assert "not measured" in done.stderr
    assert "reason" in json.loads(out.read_text())
