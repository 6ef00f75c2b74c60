"""Throughput and latency of one model beside its peers, at some batch sizes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from loadtest.compare.errors import BadAnswerError, WorkerError
from loadtest.compare.worker import Worker
from loadtest.gpu.budget import Budget
from loadtest.gpu.makers import Maker, worker
from loadtest.gpu.plan import Speed
from loadtest.gpu.roofline import best_rate
from loadtest.gpu.sizes import Family
from loadtest.gpu.state import Report

OURS = "triune"
_FIRST_ID = 5
_CONVERTED = "ctranslate2_engine"
# Programs in loadtest/peers.
PEERS = {
    Family.DECODER: ("transformers_engine", _CONVERTED),
    Family.ENCODER_DECODER: ("transformers_translator_engine", _CONVERTED),
    Family.ENCODER: ("sentence_transformers_engine", "torch_encoder_engine"),
}
_TASKS = {
    Family.DECODER: ("generate", "decode"),
    Family.ENCODER_DECODER: ("translate", "translate"),
    Family.ENCODER: ("embed", "embed"),
}


@dataclass(frozen=True)
class _Setting:
    maker: Maker
    root: Path
    device: str
    threads: int
    budget: Budget


def run_speed(
    speed: Speed,
    report: Report,
    maker: Maker,
    root: Path,
    device: str,
    threads: int,
    budget: Budget,
) -> None:
    """Measures the batch sizes that the report lacks; each is written as soon as it is known."""
    found = report.speed(speed.name)
    wanted = [batch for batch in speed.batches if str(batch) not in found["rows"]]
    if not wanted or "reason" in found:
        return
    setting = _Setting(maker, root, device, threads, budget)
    workers: dict[str, Worker] = {}
    try:
        _load_all(speed, setting, found, workers)
        if OURS not in workers:
            return
        for batch in wanted:
            found["rows"][str(batch)] = _measure(speed, batch, workers, setting, report)
            report.save()
    finally:
        for each in workers.values():
            each.close()
        report.save()


def _load_all(
    speed: Speed, setting: _Setting, found: dict[str, Any], workers: dict[str, Worker]
) -> None:
    """Adds those that run to ``workers``, which the caller ends; ``found`` gets reasons."""
    starts: dict[str, Callable[[], Worker]] = {OURS: lambda: _load_ours(speed, setting)}
    for name in PEERS[speed.size.family]:
        starts[name] = lambda name=name: _load_peer(name, speed, setting)  # type: ignore[misc]
    for name, start in starts.items():
        try:
            workers[name] = start()
        except WorkerError as error:
            setting.budget.left()  # what was ended by the clock is no reason
            if name == OURS:
                found["reason"] = str(error)
                break
            found["reasons"][name] = str(error)
    setting.maker.close()


def _load_ours(speed: Speed, setting: _Setting) -> Worker:
    bundle = setting.maker.bundle(speed.size, speed.precision, speed.kv_cache)
    question = {
        "model": str(bundle),
        "lanes": None if setting.device == "cpu" else 1,
        "slots": max(speed.batches),
        "max_length": min(1024, speed.num_tokens + speed.num_new_tokens + 1),
        "config": {"max_batched_tokens": 8192, "max_padded_tokens": 1 << 15, **speed.config},
    }
    return _loaded("server.bench", question, speed, setting)


def _load_peer(name: str, speed: Speed, setting: _Setting) -> Worker:
    maker = setting.maker
    model = maker.converted(speed.size) if name == _CONVERTED else maker.model(speed.size)
    question = {"model": str(model), "precision": speed.precision}
    return _loaded(f"loadtest.peers.{name}", question, speed, setting)


def _loaded(module: str, question: Mapping[str, Any], speed: Speed, setting: _Setting) -> Worker:
    started = worker(module, setting.root)
    task, _ = _TASKS[speed.size.family]
    common = {"op": "load", "task": task, "device": setting.device, "threads": setting.threads}
    try:
        started.ask({**common, **question}, setting.budget.left())
    except BaseException:
        started.close()
        raise
    return started


def _measure(
    speed: Speed, batch: int, workers: Mapping[str, Worker], setting: _Setting, report: Report
) -> dict[str, Any]:
    """Everybody in turn, round by round; the first round of each is not counted."""
    answers: dict[str, list[dict[str, Any]]] = {name: [] for name in workers}
    reasons: dict[str, str] = {}
    for number in range(speed.rounds + 1):
        question = _question(speed, batch, number)
        for name, each in workers.items():
            if name in reasons:
                continue
            try:
                answer = each.ask(question, setting.budget.left())
            except WorkerError as error:
                setting.budget.left()
                reasons[name] = str(error)
                continue
            if number:
                answers[name].append(answer)
    rates: dict[str, list[float]] = {}
    for name, of_one in answers.items():
        try:
            if name not in reasons:
                rates[name] = [rate_of(speed, batch, answer) for answer in of_one]
        except BadAnswerError as error:
            reasons[name] = str(error)
    best = best_rate(speed, batch, setting.device, report.about("ceilings"))
    return row(rates, reasons, answers, best)


def row(
    rates: Mapping[str, list[float]],
    reasons: Mapping[str, str],
    answers: Mapping[str, list[dict[str, Any]]],
    best: float,
) -> dict[str, Any]:
    """Tokens per second and the time between two tokens, medians of the rounds."""
    found: dict[str, Any] = {
        "tokens_per_second": {name: median(each) for name, each in rates.items()},
        "spread": {name: [min(each), max(each)] for name, each in rates.items()},
        "reasons": dict(reasons),
        "best_possible": best,
    }
    steps = [step_seconds(answer) for answer in answers.get(OURS, []) if "arrivals" in answer]
    if steps:
        found["step_seconds"] = median(steps)
    if OURS in rates:
        ours = median(rates[OURS])
        found["part_of_best_possible"] = ours / best
        found["ratio_to"] = {
            name: ours / median(each) for name, each in rates.items() if name != OURS
        }
    return found


def step_seconds(answer: Mapping[str, Any]) -> float:
    """The median time between two tokens of a row."""
    return float(np.median(np.concatenate([np.diff(row) for row in answer["arrivals"]])))


def rate_of(speed: Speed, batch: int, answer: Mapping[str, Any]) -> float:
    """Tokens per second: of a decoder, after every row has its first; else of the whole run.

    Raises:
        BadAnswerError: tokens are missing.
    """
    is_encoder = speed.size.family == Family.ENCODER
    wanted = batch * (speed.num_tokens if is_encoder else speed.num_new_tokens)
    arrivals = answer.get("arrivals")
    if arrivals is None:
        if answer["num_tokens"] != wanted:
            raise BadAnswerError(f"{answer['num_tokens']} tokens came of {wanted}")
        return float(wanted / answer["seconds"])
    found = sum(map(len, arrivals))
    if found != wanted:
        raise BadAnswerError(f"{found} tokens came of {wanted}")
    begin, end = max(row[0] for row in arrivals), max(row[-1] for row in arrivals)
    if speed.size.family != Family.DECODER:
        return float(wanted / end)
    if end <= begin:
        raise BadAnswerError("the rows never ran together")
    return float(sum(begin < moment for row in arrivals for moment in row) / (end - begin))


def _question(speed: Speed, batch: int, number: int) -> dict[str, Any]:
    """New random ids every round: nothing is in the cache already."""
    task, kind = _TASKS[speed.size.family]
    random = np.random.default_rng((number, batch))
    shape = (batch, speed.num_tokens)
    inputs = random.integers(_FIRST_ID, speed.size.config["vocab_size"], shape).tolist()
    return {
        "op": "run",
        "task": task,
        "kind": kind,
        "inputs": inputs,
        "max_new_tokens": speed.num_new_tokens,
        "beams": 1,
    }
