"""Comparison of servers: ours and a toy with the protocols of peers, as real processes."""

import dataclasses
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from loadtest.compare.candidates import COMPARED
from loadtest.compare.errors import InvalidResultError, WorkerError
from loadtest.compare.loads import ArrivalProcess, Load, Requests, loads
from loadtest.compare.our_servers import OUR_PROTOCOLS, OurSide, our_server, our_sides
from loadtest.compare.paths import Paths
from loadtest.compare.server_level import ServerComparison, load_seconds
from loadtest.compare.server_metrics import RunTiming, metrics
from loadtest.compare.server_runner import ServerRunner
from loadtest.compare.servers import SERVER_PEERS, Protocol, ServerCandidate
from loadtest.compare.time_budget import TimeBudget
from loadtest.prompts import LengthRange
from loadtest.tasks import Task

TIMING = RunTiming(warmup_seconds=0.0, duration_seconds=0.3)
LOAD = Load(
    task=Task.GENERATE,
    label="few",
    clients=2,
    arrival_process=ArrivalProcess.CLOSED,
    lengths=LengthRange(3, 5),
    num_new_tokens=LengthRange(4, 6),
    seconds_per_response=0.1,
)


@pytest.fixture
def paths(tiny_bundles: Path, tmp_path: Path) -> Paths:
    return Paths(environments=tmp_path / "peers", models=tiny_bundles, logs=tmp_path / "logs")


def _toy(kind: str, protocol: Protocol = Protocol.LLAMA, **more) -> ServerCandidate:
    return ServerCandidate(
        name=kind,
        protocol=protocol,
        command=("{python}", "-m", "tests.loadtest.toy_server", kind, "{port}"),
        model="tiny-decoder/1",
        health="" if kind == "dead" else "/health",
        **more,
    )


def _ours(model: str, protocol: str = "triune", task: Task = Task.GENERATE) -> ServerCandidate:
    side = OurSide(precision="fp32", protocol=protocol)
    return dataclasses.replace(our_server(task, side), model=f"{model}/1")


def _requests(paths: Paths, load: Load, seed: int) -> Requests:
    name = "dates" if load.task == Task.TRANSLATE else "tiny-decoder"
    return Requests(load, paths.models / name / "1" / "tokenizer.json", seed)


@pytest.fixture
def runner_of(paths: Paths) -> Iterator:
    running: list[ServerRunner] = []

    def make(server: ServerCandidate, task: Task = Task.GENERATE) -> ServerRunner:
        running.append(ServerRunner(server, task, paths, 1, print))
        return running[-1]

    yield make
    for one in running:
        one.close()


def test_requests_are_reproducible(paths: Paths) -> None:
    first, second, other = (_requests(paths, LOAD, seed) for seed in (1, 1, 2))
    assert [first[number] for number in range(20)] == [second[number] for number in range(20)]
    assert first[0] != other[0]
    tokenizer = Tokenizer.from_file(str(paths.models / "tiny-decoder" / "1" / "tokenizer.json"))
    for number in range(20):
        request = first[number]
        assert tokenizer.encode(request.text, add_special_tokens=False).ids == list(request.ids)
        assert 3 <= len(request.ids) <= 5
        assert 4 <= request.num_new_tokens <= 6


def test_a_translation_is_as_long_as_its_source(paths: Paths) -> None:
    load = dataclasses.replace(LOAD, task=Task.TRANSLATE, num_new_tokens=None)
    request = _requests(paths, load, 0)[3]
    assert request.num_new_tokens == len(request.ids) == len(request.text.split())


@pytest.mark.parametrize(
    ("protocol", "task"),
    [
        (Protocol.LLAMA, Task.GENERATE),
        (Protocol.COMPLETIONS, Task.GENERATE),
        (Protocol.EMBEDDINGS, Task.EMBED),
        (Protocol.TEI, Task.EMBED),
        (Protocol.TRITON, Task.EMBED),
    ],
)
def test_protocols_of_peers(protocol: Protocol, task: Task, paths: Paths, runner_of) -> None:
    new = LengthRange(0, 0) if task == Task.EMBED else LOAD.num_new_tokens
    load = dataclasses.replace(LOAD, task=task, num_new_tokens=new)
    runner = runner_of(_toy("good", protocol), task)
    ran = runner.run("", load, _requests(paths, load, 0), None, TIMING)
    summary = ran.summary
    assert summary.requests > 0
    assert summary.errors == {}
    if task == Task.GENERATE:
        assert 4 <= summary.output_tokens / summary.requests <= 6
        assert all(metric(ran) for metric in metrics(load).values())


@pytest.mark.parametrize("protocol", OUR_PROTOCOLS[Task.TRANSLATE])
def test_translations_through_our_server(protocol: str, paths: Paths, runner_of) -> None:
    load = dataclasses.replace(LOAD, task=Task.TRANSLATE, num_new_tokens=None, beams=2)
    runner = runner_of(_ours("dates", protocol, Task.TRANSLATE), Task.TRANSLATE)
    summary = runner.run("", load, _requests(paths, load, 0), None, TIMING).summary
    assert summary.errors == {}
    assert 3 <= summary.output_tokens / summary.requests <= 5


@pytest.mark.parametrize("protocol", OUR_PROTOCOLS[Task.GENERATE])
def test_streams_through_our_server(protocol: str, paths: Paths, runner_of) -> None:
    runner = runner_of(_ours("tiny-decoder", protocol))
    ran = runner.run("", LOAD, _requests(paths, LOAD, 0), None, TIMING)
    assert ran.summary.errors == {}
    assert 4 <= ran.summary.output_tokens / ran.summary.requests <= 6
    assert all(metric(ran) for metric in metrics(LOAD).values())


@pytest.mark.parametrize("protocol", OUR_PROTOCOLS[Task.EMBED])
def test_embeddings_through_our_server(
    protocol: str, head_bundles: Path, paths: Paths, runner_of
) -> None:
    load = dataclasses.replace(LOAD, task=Task.EMBED, num_new_tokens=LengthRange(0, 0))
    requests = _requests(paths, load, 0)
    server = _ours(str(head_bundles / "embedder"), protocol, Task.EMBED)
    runner = runner_of(server, Task.EMBED)
    summary = runner.run("", load, requests, None, TIMING).summary
    assert summary.requests > 0
    assert summary.errors == {}


def test_unknown_protocols_are_an_error() -> None:
    assert [side.name for side in our_sides(Task.EMBED, ("int8",), ("tei", "triune"))] == [
        "triune int8",
        "triune-tei int8",
    ]
    with pytest.raises(ValueError, match="not measured by http; there are triune, oip"):
        our_sides(Task.TRANSLATE, ("int8",), ("http",))


def test_missing_tokens_are_an_error(paths: Paths, runner_of) -> None:
    runner = runner_of(_toy("short"))
    with pytest.raises(InvalidResultError, match=r"got \d of \d tokens"):
        runner.run("", LOAD, _requests(paths, LOAD, 0), None, TIMING)
    assert not runner.reason


def test_a_layout_whose_server_ends_is_dropped(paths: Paths, runner_of) -> None:
    runner = runner_of(_toy("dead"))
    with pytest.raises(WorkerError, match="no such model"):
        runner.run("", LOAD, _requests(paths, LOAD, 0), None, TIMING)
    assert runner.layouts == []
    assert "does not start" in runner.reason


@pytest.mark.parametrize(
    "arrival_process",
    [ArrivalProcess.CLOSED, pytest.param(ArrivalProcess.FLOOD, marks=pytest.mark.heavy)],
)
def test_rows_of_our_server_and_its_peers(
    arrival_process: ArrivalProcess, paths: Paths, runner_of
) -> None:
    load = dataclasses.replace(LOAD, arrival_process=arrival_process)
    good = _toy("good", layouts={"one": (), "two": ()})
    peers = [runner_of(good), runner_of(_toy("dead"))]
    ours = {
        OurSide(precision="fp32", protocol=protocol): runner_of(_ours("tiny-decoder", protocol))
        for protocol in ("triune", "http")
    }
    logged: list[str] = []
    compared = ServerComparison(
        ours,
        peers,
        lambda load, seed: _requests(paths, load, seed),
        2,
        0.3,
        TimeBudget(None, ()),
        logged.append,
    )
    with closing(compared):
        first, rows = compared.rounds(load)
    assert {row["rounds"] for row in first} == {1}
    assert any("round 2" in line and "good" in line for line in logged)
    assert [row["metric"] for row in rows] == [*metrics(load)] * 2
    half = len(rows) // 2
    assert {row["ratio_to_native"] for row in rows[:half]} == {None}
    assert all(row["ratio_to_native"] > 0 for row in rows[half:])
    assert rows[-1]["protocols"]["ours"] == "OpenAI completions HTTP"
    for row in rows:
        assert json.loads(json.dumps(row)) == row
        assert row["ours"] > 0
        assert row["peers"]["good"] > 0
        assert "no such model" in row["peers"]["dead"]
        assert row["best_peer"] == "good"
        assert row["layouts"]["good"] in {"one", "two"}
        assert row["rounds"] == 2
        assert row["client_cores"].keys() == {"ours", "good"}


def test_a_comparison_without_time_runs_one_round(paths: Paths, runner_of) -> None:
    compared = ServerComparison(
        {OurSide(precision="fp32"): runner_of(_toy("good"))},
        [],
        lambda load, seed: _requests(paths, load, seed),
        5,
        0.3,
        TimeBudget(None, ()),
        print,
    )
    with closing(compared):
        assert len(list(compared.rounds(LOAD, until=0.0))) == 1


def test_only_servers_that_compile_are_started_in_advance(paths: Paths, runner_of) -> None:
    compiled = paths.environments / "cache" / "good-generate-"
    assert runner_of(_toy("good")).compile()
    assert not compiled.exists()
    assert runner_of(_toy("good", compiles=True)).compile()
    assert compiled.exists()
    assert not runner_of(_toy("dead", compiles=True)).compile()


@pytest.mark.parametrize("task", COMPARED)
def test_loads_are_unique_and_cost_more_with_more_rounds(task: Task) -> None:
    chosen = loads(task)
    assert len({(load.label, load.clients) for load in chosen}) == len(chosen)
    assert {load.clients for load in chosen if load.arrival_process == ArrivalProcess.CLOSED} >= {1}
    layouts = [1, *(len(server.layouts) for server in SERVER_PEERS[task])]
    for load in chosen:
        assert load_seconds(load, layouts, 6, 5.0) > load_seconds(load, layouts, 3, 5.0)
    assert max(load.clients for load in loads(task, quick=True)) <= 8


@pytest.mark.parametrize("task", COMPARED)
def test_a_run_lasts_for_two_responses_of_the_slowest(task: Task) -> None:
    for load in loads(task):
        assert load.run_seconds(0.1) >= 2 * load.seconds_per_response
        assert load.run_seconds(60.0) == 60.0
    slowest = max(load.seconds_per_response for load in loads(task))
    assert max(load.seconds_per_response for load in loads(task, quick=True)) <= slowest


@pytest.mark.parametrize("task", COMPARED)
def test_peers_are_pinned(task: Task) -> None:
    for server in SERVER_PEERS[task]:
        assert server.environment is not None
        assert all("==" in requirement for requirement in server.environment.requirements)


def test_a_missing_model_is_an_error(paths: Paths) -> None:
    with pytest.raises(LookupError, match="--prepare"):
        SERVER_PEERS[Task.GENERATE][0].format_command("", port=1, clients=1, threads=1, paths=paths)
