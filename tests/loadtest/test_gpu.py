"""``loadtest gpu``: its plan, its rates, and a whole run on the CPU."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loadtest.compare.errors import InvalidResultError
from loadtest.gpu.benchmark import OURS, PEERS, rate_of, row, step_seconds
from loadtest.gpu.deadline import Deadline, OutOfTimeError
from loadtest.gpu.model_sizes import BENCHMARK_SIZES, SIZES, Family
from loadtest.gpu.parity import compare_logprobs, compare_vectors
from loadtest.gpu.plan import OPTIONS, Benchmark, PlanSize, make_plan
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
    for names in ([c.name for c in plan.checks], [s.name for s in plan.benchmarks]):
        assert len(set(names)) == len(names)
    assert any(check.kv_cache == "int8" for check in plan.checks)
    precisions = {check.precision for check in plan.checks} | {s.precision for s in plan.benchmarks}
    assert ("fp32" in precisions) == (device == "cpu")


def test_the_full_plan_covers_all_precisions_and_sizes() -> None:
    plan = make_plan("cuda", PlanSize.FULL)
    assert {check.precision for check in plan.checks} == {"fp16", "bf16", "int8", "int4"}
    names = {each.size.name for each in plan.benchmarks}
    assert names == {size.name for size in BENCHMARK_SIZES}
    plain = [each for each in plan.benchmarks if each.name == f"{each.size.name}, fp16"]
    assert {each.size.name for each in plain} == names
    assert all((min(each.batches), max(each.batches)) == (1, 256) for each in plain)


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


def test_a_row_has_ratios_to_the_peers_that_ran() -> None:
    found = row({OURS: [9.0, 10.0, 14.0], "a": [5.0, 4.0, 6.0]}, {"b": "no"}, {}, 20.0)
    assert found["ratio_to"] == {"a": 2.0}
    assert found["part_of_best_possible"] == 0.5
    assert found["reasons"] == {"b": "no"}


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
    command = [sys.executable, "-m", "loadtest", "gpu", *arguments]
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
    (step,) = plan.caches
    row = report["caches"][step.name]
    assert row["slots"]["passed"] is True
    assert row["slots"]["max_error"] < 1e-5
    assert "PagedAttention" in row["paged"]["reason"]  # a CPU has no kernel for it
    ran = {name: found for name, found in report["checks"].items() if found["passed"] is not None}
    assert all(found["passed"] for found in ran.values())
    for name in report["checks"].keys() - ran.keys():
        assert "this version has no" in report["checks"][name]["reason"]
    assert len(ran) >= len(plan.checks) - len(OPTIONS)
    for each in plan.benchmarks:
        found = report["speed"][each.name]
        assert list(found["rows"]) == [str(batch) for batch in each.batches]
        for measured in found["rows"].values():
            assert measured["tokens_per_second"][OURS] > 0
            for name in PEERS[each.size.family]:
                runs = name in measured["tokens_per_second"]
                assert runs or found["reasons"].get(name) or measured["reasons"].get(name)
        assert "transformers_engine" not in found["reasons"]
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
