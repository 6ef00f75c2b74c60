"""A slot for each row beside pages: what a paged cache would cost or save in attention itself."""

from pathlib import Path
from typing import Any

from loadtest.compare.errors import WorkerError
from loadtest.gpu.deadline import Deadline
from loadtest.gpu.model_builder import worker
from loadtest.gpu.plan import CacheStep
from loadtest.gpu.report import Report

SLOTS, PAGED = "slots", "paged"
ROUNDS = 30
TOLERANCE = 0.005
"""Of an output, a mean of numbers about 1, in 16 bits."""


def run_caches(
    steps: tuple[CacheStep, ...], report: Report, root: Path, device: str, deadline: Deadline
) -> None:
    """Measures the steps that the report lacks: ``ratio`` is how many times as fast pages are."""
    found: dict[str, Any] = report.get("caches") or {}
    wanted = [step for step in steps if step.name not in found]
    if not wanted:
        return
    program = worker("loadtest.peers.attention_caches", root)
    try:
        for step in wanted:
            found[step.name] = _compared(
                {cache: _call(program, step, cache, device, deadline) for cache in (SLOTS, PAGED)}
            )
            report.set("caches", found)
    finally:
        program.close()


def _call(
    program: Any, step: CacheStep, cache: str, device: str, deadline: Deadline
) -> dict[str, Any]:
    message = {"op": "attend", "device": device, "cache": cache, "rounds": ROUNDS}
    try:
        answer: dict[str, Any] = program.call(
            {**message, **step.fields}, deadline.remaining_seconds()
        )
    except WorkerError as error:
        deadline.remaining_seconds()  # what was ended by the clock is no reason
        return {"reason": str(error)}
    return {**answer, "passed": answer["max_error"] <= TOLERANCE}


def _compared(row: dict[str, Any]) -> dict[str, Any]:
    if all("seconds" in each for each in row.values()):
        row["ratio"] = row[SLOTS]["seconds"] / row[PAGED]["seconds"]
    return row
