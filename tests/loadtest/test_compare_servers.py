"""Servers side by side: our own and a toy that speaks as peers do, as real processes."""

import dataclasses
import json
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from loadtest import driver
from loadtest.compare.contestants import COMPARED
from loadtest.compare.cpu import Used
from loadtest.compare.errors import BadAnswerError, WorkerError
from loadtest.compare.http_senders import fitted
from loadtest.compare.loads import Load, Pace, Requests, loads
from loadtest.compare.runs import Timing, answers_per_second, metrics
from loadtest.compare.server_level import ServerComparison, load_seconds
from loadtest.compare.server_runner import ServerRunner
from loadtest.compare.servers import SERVER_PEERS, Protocol, Server, ServerPlaces, server_of
from loadtest.compare.timetable import Timetable
from loadtest.prompts import LengthRange
from loadtest.statistics import OK, Sample, TokenArrival
from loadtest.tasks import Task

TIMING = Timing(warmup_seconds=0.0, duration_seconds=0.3)
LOAD = Load(
    task=Task.GENERATE,
    label="few",
    clients=2,
    pace=Pace.CLOSED,
    lengths=LengthRange(3, 5),
    num_new_tokens=LengthRange(4, 6),
    seconds_to_answer=0.1,
)


@pytest.fixture
def places(tiny_bundles: Path, tmp_path: Path) -> ServerPlaces:
    return ServerPlaces(environments=tmp_path / "peers", models=tiny_bundles)


def _toy(kind: str, protocol: Protocol = Protocol.LLAMA, **more) -> Server:
    return Server(
        name=kind,
        protocol=protocol,
        command=("{python}", "-m", "tests.loadtest.toy_server", kind, "{port}"),
        model="tiny-decoder/1",
        health="" if kind == "dead" else "/health",
        **more,
    )


def _ours(model: str) -> Server:
    return dataclasses.replace(server_of(Task.GENERATE, "fp32"), model=f"{model}/1")


def _requests(places: ServerPlaces, load: Load, seed: int) -> Requests:
    name = "dates" if load.task == Task.TRANSLATE else "tiny-decoder"
    return Requests(load, places.models / name / "1" / "tokenizer.json", seed)


@pytest.fixture
def runner_of(places: ServerPlaces, tmp_path: Path) -> Iterator:
    running: list[ServerRunner] = []

    def make(server: Server, task: Task = Task.GENERATE) -> ServerRunner:
        running.append(ServerRunner(server, task, places, tmp_path / "logs", 1, print))
        return running[-1]

    yield make
    for one in running:
        one.close()


def test_everybody_is_asked_the_same(places: ServerPlaces) -> None:
    first, second, other = (_requests(places, LOAD, seed) for seed in (1, 1, 2))
    assert [first[number] for number in range(20)] == [second[number] for number in range(20)]
    assert first[0] != other[0]
    tokenizer = Tokenizer.from_file(str(places.models / "tiny-decoder" / "1" / "tokenizer.json"))
    for number in range(20):
        request = first[number]
        assert tokenizer.encode(request.text, add_special_tokens=False).ids == list(request.ids)
        assert 3 <= len(request.ids) <= 5
        assert 4 <= request.num_new_tokens <= 6


def test_a_translation_is_as_long_as_its_source(places: ServerPlaces) -> None:
    load = dataclasses.replace(LOAD, task=Task.TRANSLATE, num_new_tokens=None)
    request = _requests(places, load, 0)[3]
    assert request.num_new_tokens == len(request.ids) == len(request.text.split())


@pytest.mark.parametrize(
    ("protocol", "task"),
    [
        (Protocol.LLAMA, Task.GENERATE),
        (Protocol.COMPLETIONS, Task.GENERATE),
        (Protocol.EMBEDDINGS, Task.EMBED),
        (Protocol.TRITON, Task.EMBED),
    ],
)
def test_protocols_of_peers(
    protocol: Protocol, task: Task, places: ServerPlaces, runner_of
) -> None:
    new = LengthRange(0, 0) if task == Task.EMBED else LOAD.num_new_tokens
    load = dataclasses.replace(LOAD, task=task, num_new_tokens=new)
    runner = runner_of(_toy("good", protocol), task)
    ran = runner.run("", load, _requests(places, load, 0), None, TIMING)
    summary = ran.summary
    assert summary.requests > 0
    assert summary.errors == {}
    if task == Task.GENERATE:
        assert 4 <= summary.output_tokens / summary.requests <= 6
        assert all(metric(ran) for metric in metrics(load).values())


def test_a_translation_through_our_server(places: ServerPlaces, runner_of) -> None:
    load = dataclasses.replace(LOAD, task=Task.TRANSLATE, num_new_tokens=None, beams=2)
    runner = runner_of(_ours("dates"), Task.TRANSLATE)
    summary = runner.run("", load, _requests(places, load, 0), None, TIMING).summary
    assert summary.errors == {}
    assert 3 <= summary.output_tokens / summary.requests <= 5


def test_tokens_that_are_missing_are_a_reason(places: ServerPlaces, runner_of) -> None:
    runner = runner_of(_toy("short"))
    with pytest.raises(BadAnswerError, match="tokens came of"):
        runner.run("", LOAD, _requests(places, LOAD, 0), None, TIMING)
    assert not runner.reason


def test_a_server_that_ends_is_out(places: ServerPlaces, runner_of) -> None:
    runner = runner_of(_toy("dead"))
    with pytest.raises(WorkerError, match="no such model"):
        runner.run("", LOAD, _requests(places, LOAD, 0), None, TIMING)
    assert runner.layouts == []
    assert "does not start" in runner.reason


@pytest.mark.parametrize("pace", [Pace.CLOSED, pytest.param(Pace.FLOOD, marks=pytest.mark.heavy)])
def test_rows_of_ours_and_of_peers(pace: Pace, places: ServerPlaces, runner_of) -> None:
    load = dataclasses.replace(LOAD, pace=pace)
    good = _toy("good", layouts={"one": (), "two": ()})
    ours, peers = runner_of(_ours("tiny-decoder")), [runner_of(good), runner_of(_toy("dead"))]
    said: list[str] = []
    compared = ServerComparison(
        {"fp32": ours},
        peers,
        lambda load, seed: _requests(places, load, seed),
        2,
        0.3,
        Timetable(None, ()),
        said.append,
    )
    with closing(compared):
        first, rows = compared.rounds(load)
    assert {row["rounds"] for row in first} == {1}
    assert any("round 2" in line and "good" in line for line in said)
    assert [row["metric"] for row in rows] == list(metrics(load))
    for row in rows:
        assert json.loads(json.dumps(row)) == row
        assert row["ours"] > 0
        assert row["peers"]["good"] > 0
        assert "no such model" in row["peers"]["dead"]
        assert row["best_peer"] == "good"
        assert row["layouts"]["good"] in {"one", "two"}
        assert row["rounds"] == 2
        assert row["client_cores"].keys() == {"ours", "good"}


def test_a_comparison_without_time_ends_after_a_round(places: ServerPlaces, runner_of) -> None:
    compared = ServerComparison(
        {"fp32": runner_of(_toy("good"))},
        [],
        lambda load, seed: _requests(places, load, seed),
        5,
        0.3,
        Timetable(None, ()),
        print,
    )
    with closing(compared):
        assert len(list(compared.rounds(LOAD, until=0.0))) == 1


def test_only_what_compiles_is_started_in_advance(places: ServerPlaces, runner_of) -> None:
    compiled = places.environments / "cache" / "good-generate-"
    assert runner_of(_toy("good")).compile()
    assert not compiled.exists()
    assert runner_of(_toy("good", compiles=True)).compile()
    assert compiled.exists()
    assert not runner_of(_toy("dead", compiles=True)).compile()


def test_an_answer_counts_for_the_part_that_lies_in_the_window() -> None:
    def sample(sent: float, finished: float, status: str = OK) -> Sample:
        return Sample(due_seconds=sent, sent_seconds=sent, finished_seconds=finished, status=status)

    window = driver.Window(warmup_seconds=1.0, duration_seconds=2.0, start_seconds=1.0)
    samples = [
        sample(0.0, 2.0),  # half of it
        sample(1.0, 3.0),  # all
        sample(2.0, 6.0),  # a quarter
        sample(0.0, 1.0),
        sample(3.0, 4.0),
        sample(1.0, 2.0, "UNAVAILABLE"),
    ]
    assert answers_per_second(samples, window) == pytest.approx(1.75 / 2)


def test_the_processor_time_of_a_group_is_not_that_of_others() -> None:
    before, after = Used(10.0, 1.0, 2.0, 20.0), Used(12.0, 1.5, 4.0, 23.0)
    assert after.client_cores(before) == 0.25
    assert after.other_cores(before) == 0.25
    used = Used.now(os.getpgrp())
    assert used.client <= used.group + 1.0
    assert 0 < used.group <= used.machine


@pytest.mark.parametrize(
    ("events", "total", "wanted"),
    [
        ((2, 2), 4, (2, 2)),
        ((1, 1, 2), 2, (1, 1)),  # the last two only say that it ended
        ((1, 1), 5, (1, 4)),  # several tokens in one event
        ((), 3, ()),
    ],
)
def test_events_become_tokens(events: tuple, total: int, wanted: tuple) -> None:
    arrivals = [TokenArrival(float(at), count) for at, count in enumerate(events)]
    assert tuple(arrival.num_tokens for arrival in fitted(arrivals, total)) == wanted


@pytest.mark.parametrize("task", COMPARED)
def test_loads_are_named_once_and_cost_what_they_say(task: Task) -> None:
    chosen = loads(task)
    assert len({(load.label, load.clients) for load in chosen}) == len(chosen)
    assert {load.clients for load in chosen if load.pace == Pace.CLOSED} >= {1}
    layouts = [1, *(len(server.layouts) for server in SERVER_PEERS[task])]
    for load in chosen:
        assert load_seconds(load, layouts, 6, 5.0) > load_seconds(load, layouts, 3, 5.0)
    assert max(load.clients for load in loads(task, quick=True)) <= 8


@pytest.mark.parametrize("task", COMPARED)
def test_the_slowest_answer_twice_in_a_run(task: Task) -> None:
    for load in loads(task):
        assert load.run_seconds(0.1) >= 2 * load.seconds_to_answer
        assert load.run_seconds(60.0) == 60.0
    slowest = max(load.seconds_to_answer for load in loads(task))
    assert max(load.seconds_to_answer for load in loads(task, quick=True)) <= slowest


@pytest.mark.parametrize("task", COMPARED)
def test_peers_are_pinned(task: Task) -> None:
    for server in SERVER_PEERS[task]:
        assert server.environment is not None
        assert all("==" in requirement for requirement in server.environment.requirements)


def test_what_cannot_be_filled_in_is_a_reason(places: ServerPlaces) -> None:
    with pytest.raises(LookupError, match="--prepare"):
        SERVER_PEERS[Task.GENERATE][0].filled("", port=1, clients=1, threads=1, places=places)
