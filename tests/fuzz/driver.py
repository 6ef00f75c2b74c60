"""Runs targets under atheris: ``python -m tests.fuzz.driver JOBS``, a JSON list of :class:`Job`.

Started by ``tests.fuzz.__main__``. libFuzzer exits the process that it runs in, so each target gets
a fork; shared imports are loaded once. Prints the exit statuses as JSON.
"""

import hashlib
import itertools
import json
import logging
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypedDict

# More threads make an input's coverage nondeterministic.
os.environ.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", RAYON_NUM_THREADS="1")

import atheris

from tests.fuzz.files import scratch_of_fork
from tests.fuzz.registry import Target, load

# Limit on address space growth per input, in bytes.
MAX_ADDRESS_GROWTH = 4 << 30
FINDING_STATUS = 77  # same exit status as libFuzzer
INSTRUMENTED = (
    "tests.fuzz.planted",
    "server",
    "model",
    "export",
    "client",
    "yaml",
    "gguf",
    "jinja2",
)


def bound_memory() -> None:
    """Limits address space, so that huge allocations raise ``MemoryError``: a finding."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    limit = pages * resource.getpagesize() + MAX_ADDRESS_GROWTH
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


class Job(TypedDict):
    """``corpus``: folder for seeds. ``options``: libFuzzer's. ``log``: file for its output.

    ``runs``, ``seconds``: limits; 0: unlimited.
    """

    target: str
    corpus: str
    options: list[str]
    log: str
    runs: int
    seconds: int


def stop_at_limits(job: Job, target: Target) -> Callable[[bytes], None]:
    """Wraps ``target.run``: exits when a limit is reached; saves the input and exits if it raises.

    Exits without running destructors.

    libFuzzer's own limits would run them, and in a fork they may wait for threads that are gone.
    """
    started, numbers = time.monotonic(), itertools.count(1)

    def run(data: bytes) -> None:
        try:
            target.run(data)
        except BaseException:
            name = f"crash-{hashlib.sha1(data, usedforsecurity=False).hexdigest()}"
            (Path(job["log"]).parent / name).write_bytes(data)
            traceback.print_exc()
            os._exit(FINDING_STATUS)
        number, seconds = next(numbers), time.monotonic() - started
        if number == job["runs"] or (job["seconds"] and seconds >= job["seconds"]):
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            print(f"Done {number} runs in {seconds:.0f} second(s)\nstat::peak_rss_mb: {peak}")
            sys.stdout.flush()
            os._exit(0)

    return run


def run(job: Job, target: Target) -> NoReturn:
    """Fuzzes until a limit is reached or an input fails. Exits the process."""
    with Path(job["log"]).open("wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    logging.disable(logging.CRITICAL)  # keep server logs out of libFuzzer's log
    try:
        for index, seed in enumerate(target.seeds()):
            (Path(job["corpus"]) / f"seed-{index:03}").write_bytes(seed)
            target.run(seed)
        bound_memory()
        options = [f"-max_len={target.SIZE}", *job["options"]]
        atheris.Setup([sys.argv[0], *options], stop_at_limits(job, target))
        atheris.Fuzz()
    except BaseException:
        traceback.print_exc()
    os._exit(1)


def main() -> None:
    """Runs the jobs one after the other."""
    jobs: list[Job] = json.loads(sys.argv[1])
    with atheris.instrument_imports(include=list(INSTRUMENTED), enable_loader_override=False):
        targets = [load(job["target"]) for job in jobs]
    statuses = []
    for job, target in zip(jobs, targets, strict=True):
        with scratch_of_fork():
            child = os.fork()
            if child == 0:
                run(job, target)
            statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(json.dumps(statuses))


if __name__ == "__main__":
    main()
