"""Throughput and latency of one engine at several batch sizes."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from loadtest.compare.errors import InvalidResultError, WorkerError
from loadtest.gpu.engine_worker import Engines, LimitedEngine, run_message
from loadtest.gpu.model_sizes import Family
from loadtest.gpu.plan import OURS, Benchmark
from loadtest.gpu.report import Report
from loadtest.gpu.roofline import roofline_rate


def run_benchmark(benchmark: Benchmark, report: Report, engines: Engines) -> None:
    """Measures the batch sizes that the report lacks, and writes each to the report at once."""
    found, engine = report.benchmark(benchmark.name), benchmark.engine
    wanted = [batch for batch in benchmark.batches if not _is_done(found, engine, batch)]
    if not wanted:
        return
    try:
        loaded = engines.load(benchmark)
    except WorkerError as error:
        found["reasons"][engine] = str(error)
        report.save()
        return
    device, ceilings = engines.setting.device, report.get("ceilings")
    for batch in wanted:
        row = found["rows"].setdefault(str(batch), {})
        try:
            replies = _replies(benchmark, batch, loaded)
            best = None  # of beams, which may share what they read of a source
            if benchmark.beams == 1:
                best = roofline_rate(benchmark, batch, device, ceilings)
            add(row, benchmark, batch, replies, best)
        except (WorkerError, InvalidResultError) as error:
            row.setdefault("reasons", {})[engine] = str(error)
        report.save()
        if not loaded.is_alive:
            break


def _is_done(found: Mapping[str, Any], engine: str, batch: int) -> bool:
    row = found["rows"].get(str(batch), {})
    reasons = {**found["reasons"], **row.get("reasons", {})}
    return engine in row.get("tokens_per_second", {}) or engine in reasons


def _replies(benchmark: Benchmark, batch: int, loaded: LimitedEngine) -> list[dict[str, Any]]:
    """The replies of all rounds but the first, a warm-up."""
    messages = [run_message(benchmark, batch, number) for number in range(benchmark.rounds + 1)]
    return [loaded.call(message) for message in messages][1:]


def add(
    row: dict[str, Any],
    benchmark: Benchmark,
    batch: int,
    replies: Sequence[Mapping[str, Any]],
    roofline: float | None,
) -> None:
    """Adds an engine to a row of the report: medians over the rounds.

    Raises:
        InvalidResultError: tokens are missing.
    """
    engine = benchmark.engine
    measured = [rate_of(benchmark, batch, reply) for reply in replies]
    for key in ("tokens_per_second", "spread", "reasons"):
        row.setdefault(key, {})
    rates = row["tokens_per_second"]
    rates[engine] = median(measured)
    row["spread"][engine] = [min(measured), max(measured)]
    if engine == OURS:
        if roofline is not None:
            row["best_possible"] = roofline
            row["part_of_best_possible"] = rates[OURS] / roofline
        if all("arrivals" in reply for reply in replies):
            row["step_seconds"] = median(step_seconds(reply) for reply in replies)
            row["first_token_seconds"] = median(first_seconds(reply) for reply in replies)
    if OURS in rates:
        others = {name: rate for name, rate in rates.items() if name != OURS}
        row["ratio_to"] = {name: rates[OURS] / rate for name, rate in others.items()}


def step_seconds(reply: Mapping[str, Any]) -> float:
    """The median time between two tokens of a sequence."""
    return float(np.median(np.concatenate([np.diff(row) for row in reply["arrivals"]])))


def first_seconds(reply: Mapping[str, Any]) -> float:
    """When all sequences have their first token."""
    return float(max(row[0] for row in reply["arrivals"]))


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
