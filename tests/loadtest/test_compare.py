"""The comparison with peers; real processes take their place."""

import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.compare import measurements
from loadtest.compare.candidates import COMPARED, ROOT, Candidate, Level
from loadtest.compare.engine_level import measure
from loadtest.compare.engine_runner import EngineRunner
from loadtest.compare.engines import engine_command, engine_peers, our_engine
from loadtest.compare.environments import FAILURE_SUFFIX, Environment
from loadtest.compare.errors import WorkerError
from loadtest.compare.measurements import Measurement
from loadtest.compare.models import BuildStep, build_steps
from loadtest.compare.paths import Paths
from loadtest.compare.prepare import _build, _install, _interpreter
from loadtest.compare.report import Report, candidate_lines, print_table
from loadtest.compare.time_budget import TimeBudget
from loadtest.compare.worker import Worker
from loadtest.compare.workloads import PRECISIONS, workloads
from loadtest.tasks import Task
from tests.loadtest.decode_workload import WORKLOAD

pytestmark = pytest.mark.slow  # exports, or starts servers


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(
        environments=tmp_path / "peers",
        models=tmp_path / "models",
        logs=tmp_path / "logs",
    )


def _toy(name: str, paths: Paths, **more) -> Candidate:
    (paths.models / name).mkdir(parents=True, exist_ok=True)
    return Candidate(name=name, module="tests.loadtest.toy_peer", models={"fp32": name}, **more)


def _runners(paths: Paths, *candidates: Candidate) -> list[EngineRunner]:
    return [EngineRunner(each, Task.GENERATE, "fp32", paths, threads=2) for each in candidates]


def test_a_candidate_that_fails_has_a_reason_and_the_others_continue(paths: Paths) -> None:
    elsewhere = Environment(name="elsewhere", requirements=())
    (paths.environments / "broken").mkdir(parents=True)
    (paths.environments / f"broken{FAILURE_SUFFIX}").write_text("does not install: no wheel\n")
    broken = Environment(name="broken", requirements=())
    layouts = {"one": {"layout": 2.0}, "two": {"layout": 1.0}}
    runners = _runners(
        paths,
        _toy("fast", paths, layouts=layouts),
        _toy("slow", paths),
        *(_toy(name, paths) for name in ("refuses", "dies", "short")),
        Candidate(name="absent", module="none", models={"fp32": "absent"}),
        Candidate(name="int8 only", module="none", models={"int8": "fast"}),
        Candidate(name="new", module="x", models={"fp32": "fast"}, environment=elsewhere),
        Candidate(name="broken", module="x", models={"fp32": "fast"}, environment=broken),
        Candidate(name="no module", module="none.at.all", models={"fp32": "fast"}),
    )
    logged: list[str] = []
    found = measure(WORKLOAD, runners, 3, TimeBudget(None, ()), math.inf, logged.append)
    again = measure(WORKLOAD, runners, 3, TimeBudget(None, ()), 0.0, logged.append)
    for runner in runners:
        runner.close()
    assert found["fast"] == Measurement(rates=(8.0,) * 3, layout="two")
    assert found["slow"].rates == pytest.approx((2.0,) * 3)
    reasons = {name: one.reason for name, one in found.items() if one.reason}
    assert "does not load: RuntimeError: this model is not for me" in reasons["refuses"]
    assert "out of luck" in reasons["dies"]
    assert reasons["short"] == "got 6 of 8 tokens"
    assert reasons["absent"] == "models/absent is missing: run the comparison with --prepare"
    assert reasons["int8 only"] == "has no fp32"
    assert "--prepare" in reasons["new"]
    assert reasons["broken"] == "does not install: no wheel"
    assert "none" in reasons["no module"]
    assert len(reasons) == 8
    assert again["dies"].reason.startswith("died in decode, batch 2")


def test_failed_installations_and_builds_write_their_reasons(tmp_path: Path) -> None:
    logged: list[str] = []
    environment = Environment(name="impossible", requirements=())
    (tmp_path / "impossible").touch()
    assert not _install(environment, tmp_path, logged.append)
    failure = (tmp_path / f"impossible{FAILURE_SUFFIX}").read_text()
    assert failure.startswith("does not install: ")
    failing = BuildStep(
        out=tmp_path / "model", command=(sys.executable, "-c", "raise OSError('full')")
    )
    assert not _build(failing, logged.append)
    assert "OSError: full" in (tmp_path / f"model{FAILURE_SUFFIX}").read_text()
    program = f"open({str(tmp_path / 'model')!r}, 'w')"
    assert _build(
        BuildStep(out=tmp_path / "model", command=(sys.executable, "-c", program)), logged.append
    )
    assert not (tmp_path / f"model{FAILURE_SUFFIX}").exists()


def test_the_report_is_complete_after_every_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    about = {"task": "generate", "work": "w", "precision": "int8", "batch": 1, "metric": "tokens/s"}
    peers = {
        "a": Measurement(rates=(1.0, 2.0, 4.0)),
        "b": Measurement(reason="does not install: why"),
    }
    report = Report(tmp_path / "out" / "rows.json", {"task": "generate"})
    report.add(measurements.row(about, Measurement(rates=(2.0, 2.0, 2.0), layout="x"), peers, 4.0))
    report.add(measurements.row(about, Measurement(reason="died"), peers, None))
    document = json.loads((tmp_path / "out" / "rows.json").read_text())
    first, second = document["rows"]
    assert document["machine"]["cores"] >= 1
    assert first["ours"] == 2.0
    assert first["peers"] == {"a": 2.0, "b": "does not install: why"}
    # The ratios of the rounds are 2, 1 and 0.5.
    assert first["ratio_to_best_peer"] == 1.0
    assert first["ratio_spread"] == [0.5, 2.0]
    assert first["spread"] == {"ours": [2.0, 2.0], "a": [1.0, 4.0]}
    assert first["part_of_floor"] == 0.5
    assert first["layouts"] == {"ours": "x"}
    assert (second["ours"], second["ratio_to_best_peer"]) == ("died", None)
    print_table(report.rows)
    assert "generate int8 b: does not install: why" in capsys.readouterr().out


def test_our_engine_speaks_the_protocol_of_peers(tiny_bundles: Path, tmp_path: Path) -> None:
    worker = Worker(engine_command(), {}, tmp_path / "log", ROOT)
    try:
        with pytest.raises(WorkerError, match="nothing is loaded"):
            worker.call({"op": "run", "inputs": [[5]], "max_new_tokens": 2}, 60)
        with pytest.raises(WorkerError, match="BundleError"):
            worker.call({"op": "load", "model": str(tmp_path), "threads": 1}, 60)
        bundle = tiny_bundles / "tiny-decoder" / "1"
        worker.call({"op": "load", "model": str(bundle), "threads": 2, "lanes": 2}, 60)
        answer = worker.call(
            {"op": "run", "inputs": [[5, 6, 7], [6, 7, 8]], "max_new_tokens": 120}, 60
        )
        workload = dataclasses.replace(WORKLOAD, num_new_tokens=120)
        assert measurements.rate(workload, answer) > 0
        assert all(row == sorted(row) and len(row) == 120 for row in answer["arrivals"])
        greedy = {"op": "tokens", "inputs": [[5, 6, 7]], "max_new_tokens": 9, "with_logprobs": True}
        found = worker.call(greedy, 60)
        answer = found["tokens"][0]
        scored = worker.call({"op": "score", "inputs": [[5, 6, 7, *answer]], "starts": [3]}, 60)
        assert scored["top"] == found["tokens"]
        assert scored["logprobs"][0] == pytest.approx(found["logprobs"][0], abs=1e-4)
    finally:
        worker.close()


@pytest.mark.parametrize("padded", [True, False])
def test_a_static_batch_ends_before_the_next_starts(
    padded: bool, tiny_bundles: Path, tmp_path: Path
) -> None:
    worker = Worker(engine_command(), {}, tmp_path / "log", ROOT)
    try:
        bundle = str(tiny_bundles / "tiny-decoder" / "1")
        message = {"op": "load", "model": bundle, "threads": 1, "static": 2, "padded": padded}
        worker.call(message, 60)
        inputs, new = [[5, 6]] * 4, [20, 40, 10, 5]
        answer = worker.call({"op": "run", "inputs": inputs, "max_new_tokens": new}, 60)
        arrivals = answer["arrivals"]
        assert [len(row) for row in arrivals] == new
        # The second batch starts when the longest sequence of the first has ended.
        assert min(arrivals[2][0], arrivals[3][0]) > max(arrivals[0][-1], arrivals[1][-1])
    finally:
        worker.close()


@pytest.mark.parametrize("level", ["engine", "text", "server", "static"])
def test_command_line(level: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "loadtest", "compare", "--task", "translate"]
    ran = subprocess.run(
        [*command, "--level", level, "--peers", "nobody", "--json", str(tmp_path / "out.json")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.returncode == 1
    assert "no peer for translate: nobody; there are " in ran.stderr


def test_missing_models_are_reported_with_what_to_do(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "loadtest", "compare", "--task", "embed", "--level", "server"]
    ran = subprocess.run(
        [*command, "--root", str(tmp_path), "--json", str(tmp_path / "out.json")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.returncode == 1
    assert "run the comparison with --prepare" in ran.stderr.splitlines()[-1]
    assert ran.stderr.splitlines()[-1].startswith("error: ")


LEVELS = [(task, Level.ENGINE) for task in COMPARED] + [(Task.TRANSLATE, Level.TEXT)]


@pytest.mark.parametrize(("task", "level"), LEVELS)
def test_peers_are_pinned_and_workloads_are_unique(task: Task, level: Level) -> None:
    for peer in engine_peers(task, level):
        assert peer.environment is not None
        assert all("==" in requirement for requirement in peer.environment.requirements)
    chosen = workloads(task, "int8", level)
    assert len({(workload.label, workload.batch) for workload in chosen}) == len(chosen)
    assert set(workloads(task, "int8", level, quick=True)) <= set(chosen)


@pytest.mark.parametrize(("task", "level"), LEVELS)
def test_every_model_of_a_candidate_has_a_build_step(
    task: Task, level: Level, tmp_path: Path
) -> None:
    built = {step.out for step in build_steps(task, level, tmp_path)}
    for peer in engine_peers(task, level):
        assert {tmp_path / "compare" / model for model in peer.models.values()} <= built
    ours = our_engine(task, level).models
    assert {tmp_path / "compare" / ours[each] for each in PRECISIONS[level][task]} - built <= {
        tmp_path / "compare" / ours["fp32"]
    }
    assert len(built) == len(build_steps(task, level, tmp_path))


def test_a_candidate_line_has_speed_ratio_floor_and_fidelity() -> None:
    about = {"task": "generate", "work": "w", "precision": "int8", "batch": 1, "metric": "tokens/s"}
    peers = {
        "a": Measurement(rates=(1.0, 2.0), extra={"fidelity": {"top_1": 0.9, "rms_nats": 0.2}}),
        "b": Measurement(reason="has no int8"),
    }
    row = measurements.row(about, Measurement(rates=(2.0, 2.0)), peers, 4.0)
    assert candidate_lines(row) == [
        ("generate int8, w", "1", "ours", "", "2 tokens/s", "", "50.0%", "–"),
        ("", "", "a", "", "1.5 tokens/s", "1.50", "37.5%", "top-1 0.900, rms 0.200"),
    ]
    assert measurements.with_floor(row, 8.0)["part_of_floor"] == 0.25
    assert measurements.with_floor(row, None)["part_of_floor"] is None


def test_an_environment_may_need_another_python() -> None:
    assert _interpreter(None) == sys.executable
    with pytest.raises(LookupError, match=r"Python 2\.1 is not installed"):
        _interpreter("2.1")


def test_the_service_translates_the_texts_of_each_request(
    tiny_bundles: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", our_engine(Task.TRANSLATE, Level.TEXT).module]
    worker = Worker(command, {}, tmp_path / "log", ROOT)
    try:
        with pytest.raises(WorkerError, match="nothing is loaded"):
            worker.call({"op": "run", "requests": [["a"]]}, 60)
        bundle = tiny_bundles / "dates" / "1"
        worker.call({"op": "load", "model": str(bundle), "threads": 1}, 60)
        together = worker.call({"op": "run", "requests": [["4 May 1999", "1 June 2001"]]}, 60)
        apart = worker.call({"op": "run", "requests": [["4 May 1999"], ["1 June 2001"]]}, 60)
        assert together["texts"] == apart["texts"]
        assert len(together["texts"]) == 2
    finally:
        worker.close()
