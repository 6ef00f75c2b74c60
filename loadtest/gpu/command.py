"""``loadtest gpu``: runs the plan and prints the report."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from loadtest.compare.errors import WorkerError
from loadtest.gpu.benchmark import OURS, run_benchmark
from loadtest.gpu.cache_layouts import PAGED, SLOTS, run_caches
from loadtest.gpu.deadline import Deadline, OutOfTimeError
from loadtest.gpu.model_builder import ModelBuilder, worker
from loadtest.gpu.parity_checks import ParityChecker
from loadtest.gpu.plan import PlanSize, make_plan
from loadtest.gpu.report import NOT_MEASURED, Report


@dataclass(frozen=True, kw_only=True)
class Request:
    """Arguments of the command. ``only``: parts of names to select by; empty selects all."""

    device: str
    sizes: PlanSize
    budget_seconds: float
    out: Path
    root: Path
    only: tuple[str, ...] = ()


def run_gpu(request: Request, console: Console) -> bool:
    """Runs what the report lacks. Returns whether the device exists and no check failed.

    What does not fit into the time budget is left for the next run with the same report.
    """
    deadline = Deadline(request.budget_seconds)
    report = Report(request.out, request.device)
    if not _measure_machine(request, report, deadline, console):
        return False
    builder = ModelBuilder(request.root, request.device, deadline)
    checker = ParityChecker(builder, request.root, request.device, deadline)
    plan = make_plan(request.device, request.sizes)
    is_selected = _filter(request.only)
    threads = len(os.sched_getaffinity(0))
    try:
        checks = [check for check in plan.checks if is_selected(check.name)]
        checker.run(checks, report)
        checker.close()
        caches = tuple(step for step in plan.caches if is_selected(f"caches, {step.name}"))
        run_caches(caches, report, request.root, request.device, deadline)
        for benchmark in plan.benchmarks:
            if is_selected(benchmark.name):
                run_benchmark(
                    benchmark, report, builder, request.root, request.device, threads, deadline
                )
        report.set("finished", True)
    except OutOfTimeError:
        report.set("finished", False)
        console.print("out of time: run again with the same --out to continue", highlight=False)
    finally:
        checker.close()
        builder.close()
    _print(report, console)
    return not report.failed_checks


def pack_models(root: Path, only: tuple[str, ...]) -> None:
    """Exports the models to measure, which needs no GPU, and makes their skeletons below ``root``.

    ``only``: as of :class:`Request`.
    """
    builder = ModelBuilder(root, "cuda", Deadline(math.inf))
    is_selected = _filter(only)
    try:
        for benchmark in make_plan("cuda", PlanSize.FULL).benchmarks:
            if is_selected(benchmark.name):
                builder.pack(benchmark.size, benchmark.precision, benchmark.kv_cache)
    finally:
        builder.close()


def _filter(only: tuple[str, ...]) -> Callable[[str], bool]:
    return lambda name: not only or any(each in name for each in only)


def _measure_machine(
    request: Request, report: Report, deadline: Deadline, console: Console
) -> bool:
    """Adds the machine and its peak rates to the report. Returns whether the device exists."""
    if not request.device.startswith("cuda"):
        console.print(NOT_MEASURED, highlight=False)
    if report.get("ceilings") is not None:
        return True
    machine = worker("loadtest.peers.torch_machine", request.root)
    try:
        device = {"device": request.device}
        report.set(
            "machine", machine.call({"op": "describe", **device}, deadline.remaining_seconds())
        )
        report.set(
            "ceilings", machine.call({"op": "ceilings", **device}, deadline.remaining_seconds())
        )
    except WorkerError as error:
        report.set("reason", str(error))
        console.print(f"not measured: {error}", style="red", highlight=False)
        return False
    finally:
        machine.close()
    report.set("reason", None)
    return True


def _print_caches(report: Report, console: Console) -> None:
    table = Table("attention", "slots, ms", "pages, ms", "speed of pages / slots")
    for name, row in (report.get("caches") or {}).items():
        times = [
            f"{1e3 * each['seconds']:.3f}{'' if each['passed'] else ', WRONG'}"
            if "seconds" in each
            else "-"
            for each in (row[SLOTS], row[PAGED])
        ]
        table.add_row(name, *times, f"{row['ratio']:.2f}" if "ratio" in row else "-")
    console.print(table)


def _print(report: Report, console: Console) -> None:
    table = Table("check", "passed", "error or reason")
    for name, found in report.get("checks").items():
        error = found.get("max_logprob_error")
        if error is None:
            error = found.get("most_behind_the_likeliest", 1 - found.get("min_cosine", 1))
        passed = {True: "yes", False: "NO", None: "-"}[found["passed"]]
        table.add_row(name, passed, found.get("reason", f"{error:.2g}"))
    console.print(table)
    _print_caches(report, console)
    table = Table("model", "batch", "tokens/s", "of roofline", "x peers")
    for name, found in report.get("speed").items():
        for batch, row in found["rows"].items():
            ours = row["tokens_per_second"].get(OURS)
            ratios = {each: f"{ratio:.2f}" for each, ratio in row.get("ratio_to", {}).items()}
            ratios_text = ", ".join(f"{each} {ratio}" for each, ratio in ratios.items())
            part = row.get("part_of_best_possible")
            table.add_row(
                name,
                batch,
                "-" if ours is None else f"{ours:,.0f}",
                "-" if part is None else f"{part:.0%}",
                ratios_text,
            )
        if "reason" in found:
            table.add_row(name, "-", found["reason"], "-", "-")
    console.print(table)
