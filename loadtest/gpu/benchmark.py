"""Throughput and latency of one model and its peers at several batch sizes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from loadtest.compare.errors import InvalidResultError, WorkerError
from loadtest.compare.worker import Worker
from loadtest.gpu.deadline import Deadline
from loadtest.gpu.model_builder import ModelBuilder, worker
from loadtest.gpu.model_sizes import Family
from loadtest.gpu.plan import Benchmark
from loadtest.gpu.report import Report
from loadtest.gpu.roofline import roofline_rate

OURS = "triune"
_FIRST_ID = 5
_CONVERTED = "ctranslate2_engine"
# Modules of loadtest/peers.
PEERS = {
    Family.DECODER: ("transformers_engine", "transformers_compiled_engine", _CONVERTED),
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
    builder: ModelBuilder
    root: Path
    device: str
    threads: int
    deadline: Deadline


def run_benchmark(
    benchmark: Benchmark,
    report: Report,
    builder: ModelBuilder,
    root: Path,
    device: str,
    threads: int,
    deadline: Deadline,
) -> None:
    """Measures the batch sizes that the report lacks, and writes each to the report at once."""
    found = report.benchmark(benchmark.name)
    wanted = [batch for batch in benchmark.batches if str(batch) not in found["rows"]]
    if not wanted or "reason" in found:
        return
    setting = _Setting(builder, root, device, threads, deadline)
    workers: dict[str, Worker] = {}
    try:
        _start_all(benchmark, setting, found, workers)
        if OURS not in workers:
            return
        for batch in wanted:
            found["rows"][str(batch)] = _measure(benchmark, batch, workers, setting, report)
            report.save()
    finally:
        for each in workers.values():
            each.close()
        report.save()


def _start_all(
    benchmark: Benchmark, setting: _Setting, found: dict[str, Any], workers: dict[str, Worker]
) -> None:
    """Adds the engines that start to ``workers``, and reasons of the others to ``found``.

    The caller ends the workers.
    """
    starts: dict[str, Callable[[], Worker]] = {OURS: lambda: _start_ours(benchmark, setting)}
    for name in PEERS[benchmark.size.family]:
        starts[name] = lambda name=name: _start_peer(name, benchmark, setting)  # type: ignore[misc]
    for name, start in starts.items():
        try:
            workers[name] = start()
        except WorkerError as error:
            setting.deadline.remaining_seconds()  # raises if the deadline caused the error
            if name == OURS:
                found["reason"] = str(error)
                break
            found["reasons"][name] = str(error)
    setting.builder.close()


def _start_ours(benchmark: Benchmark, setting: _Setting) -> Worker:
    bundle = setting.builder.bundle_to_time(benchmark.size, benchmark.precision, benchmark.kv_cache)
    message = {
        "model": str(bundle),
        "lanes": None if setting.device == "cpu" else 1,
        "slots": max(benchmark.batches),
        "max_length": min(1024, benchmark.num_tokens + benchmark.num_new_tokens + 1),
        "config": {"max_batched_tokens": 8192, "max_padded_tokens": 1 << 15, **benchmark.config},
    }
    return _start("server.bench", message, benchmark, setting)


def _start_peer(name: str, benchmark: Benchmark, setting: _Setting) -> Worker:
    builder = setting.builder
    model = (
        builder.converted(benchmark.size) if name == _CONVERTED else builder.model(benchmark.size)
    )
    message = {"model": str(model), "precision": benchmark.precision}
    return _start(f"loadtest.peers.{name}", message, benchmark, setting)


def _start(
    module: str, message: Mapping[str, Any], benchmark: Benchmark, setting: _Setting
) -> Worker:
    started = worker(module, setting.root)
    task, _ = _TASKS[benchmark.size.family]
    common = {"op": "load", "task": task, "device": setting.device, "threads": setting.threads}
    try:
        started.call({**common, **message}, setting.deadline.remaining_seconds())
    except BaseException:
        started.close()
        raise
    return started


def _measure(
    benchmark: Benchmark,
    batch: int,
    workers: Mapping[str, Worker],
    setting: _Setting,
    report: Report,
) -> dict[str, Any]:
    """Runs the engines in turn, round by round. The first round is a warm-up."""
    answers: dict[str, list[dict[str, Any]]] = {name: [] for name in workers}
    reasons: dict[str, str] = {}
    for number in range(benchmark.rounds + 1):
        message = _message(benchmark, batch, number)
        for name, each in workers.items():
            if name in reasons:
                continue
            try:
                reply = each.call(message, setting.deadline.remaining_seconds())
            except WorkerError as error:
                setting.deadline.remaining_seconds()
                reasons[name] = str(error)
                continue
            if number:
                answers[name].append(reply)
    rates: dict[str, list[float]] = {}
    for name, of_one in answers.items():
        try:
            if name not in reasons:
                rates[name] = [rate_of(benchmark, batch, reply) for reply in of_one]
        except InvalidResultError as error:
            reasons[name] = str(error)
    roofline = roofline_rate(benchmark, batch, setting.device, report.get("ceilings"))
    return row(rates, reasons, answers, roofline)


def row(
    rates: Mapping[str, list[float]],
    reasons: Mapping[str, str],
    answers: Mapping[str, list[dict[str, Any]]],
    roofline: float,
) -> dict[str, Any]:
    """A row of the report: medians over the rounds."""
    found: dict[str, Any] = {
        "tokens_per_second": {name: median(each) for name, each in rates.items()},
        "spread": {name: [min(each), max(each)] for name, each in rates.items()},
        "reasons": dict(reasons),
        "best_possible": roofline,
    }
    steps = [step_seconds(reply) for reply in answers.get(OURS, []) if "arrivals" in reply]
    if steps:
        found["step_seconds"] = median(steps)
    if OURS in rates:
        ours = median(rates[OURS])
        found["part_of_best_possible"] = ours / roofline
        found["ratio_to"] = {
            name: ours / median(each) for name, each in rates.items() if name != OURS
        }
    return found


def step_seconds(reply: Mapping[str, Any]) -> float:
    """The median time between two tokens of a sequence."""
    return float(np.median(np.concatenate([np.diff(row) for row in reply["arrivals"]])))


def rate_of(benchmark: Benchmark, batch: int, reply: Mapping[str, Any]) -> float:
    """Tokens per second: of a decoder after each sequence has its first token, else of the run.

    Raises:
        InvalidResultError: tokens are missing.
    """
    is_encoder = benchmark.size.family == Family.ENCODER
    wanted = batch * (benchmark.num_tokens if is_encoder else benchmark.num_new_tokens)
    arrivals = reply.get("arrivals")
    if arrivals is None:
        if reply["num_tokens"] != wanted:
            raise InvalidResultError(f"got {reply['num_tokens']} of {wanted} tokens")
        return float(wanted / reply["seconds"])
    found = sum(map(len, arrivals))
    if found != wanted:
        raise InvalidResultError(f"got {found} of {wanted} tokens")
    begin, end = max(row[0] for row in arrivals), max(row[-1] for row in arrivals)
    if benchmark.size.family != Family.DECODER:
        return float(wanted / end)
    if end <= begin:
        raise InvalidResultError("the sequences never decoded together")
    return float(sum(begin < moment for row in arrivals for moment in row) / (end - begin))


def _message(benchmark: Benchmark, batch: int, number: int) -> dict[str, Any]:
    """The ``run`` message. Ids are random and new in each round: nothing is cached already."""
    task, kind = _TASKS[benchmark.size.family]
    random = np.random.default_rng((number, batch))
    shape = (batch, benchmark.num_tokens)
    inputs = random.integers(_FIRST_ID, benchmark.size.config["vocab_size"], shape).tolist()
    return {
        "op": "run",
        "task": task,
        "kind": kind,
        "inputs": inputs,
        "max_new_tokens": benchmark.num_new_tokens,
        "beams": 1,
    }
