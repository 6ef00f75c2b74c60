"""``loadtest gpu``: runs the plan and prints the report."""

import contextlib
import functools
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from loadtest.compare.errors import WorkerError
from loadtest.gpu.benchmark import run_benchmark
from loadtest.gpu.cache_layouts import run_caches
from loadtest.gpu.deadline import Deadline, OutOfTimeError
from loadtest.gpu.engine_worker import Engines, Setting
from loadtest.gpu.full_plan import CONVERTED, make_plan
from loadtest.gpu.model_builder import ModelBuilder, worker
from loadtest.gpu.parity_checks import ParityChecker
from loadtest.gpu.plan import OURS, Benchmark, CacheStep, Part, PlanSize, Profile
from loadtest.gpu.printing import print_report
from loadtest.gpu.profiles import run_profile
from loadtest.gpu.report import NOT_MEASURED, Report

_SHORT_SECONDS = 0.05


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

    Raises:
        ValueError: nothing in the plan has a part of ``request.only`` in its name.
    """
    plan = make_plan(request.device, request.sizes)
    is_selected = _filter(request.only)
    titles = [f"{Part.CHECKS}: {each.name}" for each in plan.checks]
    titles += [f"{part}: {item.title}" for part, item in plan.items]
    if not any(map(is_selected, titles)):
        raise ValueError(f"--only: nothing has {' or '.join(request.only)} in its name")
    deadline = Deadline(request.budget_seconds)
    report = Report(request.out, request.device)
    with _timed("machine", console):
        if not _measure_machine(request, report, deadline, console):
            return False
    builder = ModelBuilder(request.root, request.device, deadline)
    checker = ParityChecker(builder, request.root, request.device, deadline)
    threads = len(os.sched_getaffinity(0))
    setting = Setting(builder, request.root, request.device, threads, deadline)
    engines = Engines(setting)
    try:
        checks = [each for each in plan.checks if is_selected(f"{Part.CHECKS}: {each.name}")]
        with _timed(Part.CHECKS, console):
            checker.run(checks, report)
            checker.close()
        for part, item in plan.items:
            title = f"{part}: {item.title}"
            if is_selected(title):
                with _timed(title, console):
                    try:
                        _run(item, report, engines)
                    except (ValueError, LookupError, OSError) as error:
                        console.print(f"{title}: {error!r}", style="red", highlight=False)
        report.set("finished", True)
    except OutOfTimeError:
        report.set("finished", False)
        console.print("out of time: run again with the same --out to continue", highlight=False)
    finally:
        engines.close()
        checker.close()
        builder.close()
    print_report(report, console)
    return not report.failed_checks


def _run(item: Benchmark | Profile | CacheStep, report: Report, engines: Engines) -> None:
    if isinstance(item, Benchmark):
        run_benchmark(item, report, engines)
    elif isinstance(item, Profile):
        run_profile(item, report, engines)
    else:
        engines.close()  # it would take memory and time
        setting = engines.setting
        run_caches((item,), report, setting.root, setting.device, setting.deadline)


@contextlib.contextmanager
def _timed(title: str, console: Console) -> Iterator[None]:
    """Prints what was run and how long it took, if it took any time."""
    started = time.monotonic()
    try:
        yield
    finally:
        seconds = time.monotonic() - started
        if seconds >= _SHORT_SECONDS:
            console.print(f"{seconds:6.1f} s  {title}", highlight=False, soft_wrap=True)


def pack_models(root: Path, only: tuple[str, ...], console: Console) -> None:
    """Makes what a GPU is to check and to measure, which needs none, below ``root``.

    Models of the checks are made whole, of the others skeletons. What cannot be made is printed.

    Args:
        only: as of :class:`Request`; selects by the names of bundles and models.
    """
    builder = ModelBuilder(root, "cuda", Deadline(math.inf))
    plan = make_plan("cuda", PlanSize.FULL)
    jobs: dict[str, Callable[[], object]] = {}
    for check in plan.checks:
        form = (check.size, check.precision, check.kv_cache)
        name = f"check: {check.size.name}, {check.precision}, {check.kv_cache} cache"
        jobs[name] = functools.partial(builder.bundle, *form)
    for each in plan.bundles:
        jobs[f"bundle: {each.name}"] = functools.partial(
            builder.pack_bundle, each.size, each.precision, each.kv_cache
        )
    for each in plan.benchmarks:
        if each.engine == CONVERTED:
            pack = functools.partial(builder.pack_converted, each.size)
            jobs[f"ctranslate2: {each.size.name}"] = pack
        elif each.engine != OURS:
            jobs[f"model: {each.size.name}"] = functools.partial(builder.pack_model, each.size)
    is_selected = _filter(only)
    try:
        for name, job in jobs.items():
            if is_selected(name):
                with _timed(name, console):
                    try:
                        job()
                    except WorkerError as error:
                        console.print(f"{name}: {error}", style="red", highlight=False)
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
