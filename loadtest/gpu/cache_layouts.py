"""Compares attention over cache slots with attention over pages (PagedAttention)."""

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
"""Absolute, of an output: a weighted mean of normally distributed values, in 16 bits."""


def run_caches(
    steps: tuple[CacheStep, ...], report: Report, root: Path, device: str, deadline: Deadline
) -> None:
    """Measures the steps that the report lacks. ``ratio``: speed of pages relative to slots."""
    found: dict[str, Any] = report.get("caches") or {}
    wanted = [step for step in steps if step.name not in found]
    if not wanted:
        return
    program = worker("loadtest.peers.attention_caches", root)
    try:
        for step in wanted:
            found[step.name] = _with_ratio(
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
        reply: dict[str, Any] = program.call(
            {**message, **step.fields}, deadline.remaining_seconds()
        )
    except WorkerError as error:
        deadline.remaining_seconds()  # raises if the deadline caused the error
        return {"reason": str(error)}
    return {**reply, "passed": reply["max_error"] <= TOLERANCE}


def _with_ratio(row: dict[str, Any]) -> dict[str, Any]:
    if all("seconds" in each for each in row.values()):
        row["ratio"] = row[SLOTS]["seconds"] / row[PAGED]["seconds"]
    return row
