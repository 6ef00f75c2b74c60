"""Decode steps and prefills with LoRA adapters, beside the bundle without any.

    python -m tests.benchmarks.adapters PLAIN/VERSION ADAPTED/VERSION [--threads 2] [--rounds 9]

Both folders are bundles of one decoder; the second has adapters. Rounds alternate between all
settings, and the median of each is printed with its ratio to that of the plain bundle. With one
thread, its CPU time counts, so that other processes disturb less.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from server.engine.cache.slot_tensors import Capacity
from server.engine.generation_worker import GenerationWorker
from server.engine.lane import never
from server.engine.model_runner import ModelRunner
from server.engine.observer import Unobserved
from server.engine.requests.job import Delivery, GenerationJob
from server.engine.scheduler import StepLimits
from server.models.registry import Model, load_bundle
from server.runtime.ort.backend import OrtBackend

PROMPT, NEW = 64, 48
LONG_PROMPT = 512


def make_worker(model: Model, num_slots: int) -> GenerationWorker:
    graphs = model.replicas[0].graphs
    runner = ModelRunner(
        model.manifest.graphs["decode"],
        graphs["decode"],
        None,
        Capacity(num_slots, LONG_PROMPT + NEW, 0),
        memory=model.replicas[0].memory,
    )
    limits = StepLimits(num_slots, 8 * LONG_PROMPT)
    return GenerationWorker(
        "bench",
        runner,
        Capacity(num_slots, LONG_PROMPT + NEW, 0),
        limits,
        time.monotonic,
        Unobserved(),
        allows_drafts=False,
    )


def run_seconds(
    model: Model, adapters: list[int], prompt: int, new: int, clock: Callable[[], float]
) -> float:
    """Seconds to generate ``new`` tokens after the first of each job, or to prefill if 0."""
    worker = make_worker(model, len(adapters))
    for id_, adapter in enumerate(adapters):
        tokens = tuple(range(100 + id_, 100 + id_ + prompt))
        job = GenerationJob(tokens, max(new, 1), adapter=adapter, delivery=Delivery.EACH)
        worker.submit(id_, job)
    started = clock()
    worker.step(never)
    if new:
        started = clock()
    while worker.has_work and new:
        worker.step(never)
    return clock() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plain", type=Path)
    parser.add_argument("adapted", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    clock = time.thread_time if options.threads == 1 else time.perf_counter
    backend = OrtBackend("cpu", options.threads)
    plain, adapted = (
        load_bundle(folder, backend, LONG_PROMPT + NEW)
        for folder in (options.plain, options.adapted)
    )
    count = len(adapted.manifest.adapters or ())
    for name, num_jobs, prompt, new in (
        ("decode 1", 1, PROMPT, NEW),
        ("decode 8", 8, PROMPT, NEW),
        ("prefill 512", 1, LONG_PROMPT, 0),
    ):
        settings = {
            "plain": (plain, [0] * num_jobs),
            "no adapter": (adapted, [0] * num_jobs),
            "one adapter": (adapted, [1] * num_jobs),
        }
        if num_jobs > 1:
            settings["all adapters"] = (adapted, [1 + i % count for i in range(num_jobs)])
            settings["mixed"] = (adapted, [i % (count + 1) for i in range(num_jobs)])
        seconds: dict[str, list[float]] = {setting: [] for setting in settings}
        for _, (setting, (model, adapters)) in itertools.product(
            range(options.rounds), settings.items()
        ):
            seconds[setting].append(run_seconds(model, adapters, prompt, new, clock))
        base = statistics.median(seconds["plain"])
        for setting, values in seconds.items():
            median = statistics.median(values)
            rate = num_jobs * (new or prompt) / median
            print(f"{name:12} {setting:12} {rate:9.1f} tokens/s  {base / median:6.3f}", flush=True)


if __name__ == "__main__":
    main()
