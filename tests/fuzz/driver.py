"""Targets under atheris: ``python -m tests.fuzz.driver JOBS``, a list as JSON of :class:`Job`.

``tests.fuzz.__main__`` starts it. libFuzzer ends the process that it runs in, so each target has
a fork; what all of them import is read once. Writes the exit statuses, as JSON.
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

# More threads only make an input's coverage depend on luck.
os.environ.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", RAYON_NUM_THREADS="1")

import atheris

from tests.fuzz.registry import Target, load

# What an input may take beyond what the target holds when it begins, in bytes of addresses.
MAX_ADDRESS_GROWTH = 4 << 30
FOUND = 77  # the exit status of libFuzzer, too
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
    """An allocation that no input can be worth ends in ``MemoryError``, which is a finding."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    limit = pages * resource.getpagesize() + MAX_ADDRESS_GROWTH
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


class Job(TypedDict):
    """``corpus`` gets the seeds, ``options`` are libFuzzer's, ``log`` is what it says.

    ``runs`` and ``seconds`` are bounds, 0 is none.
    """

    target: str
    corpus: str
    options: list[str]
    log: str
    runs: int
    seconds: int


def bounded(job: Job, target: Target) -> Callable[[bytes], None]:
    """``target.run`` until a bound is reached, or it raises: then the input is saved.

    Either ends the process without its destructors.

    libFuzzer's own bounds would run them, and those of a fork may wait for threads that it lacks.
    """
    started, numbers = time.monotonic(), itertools.count(1)

    def run(data: bytes) -> None:
        try:
            target.run(data)
        except BaseException:
            name = f"crash-{hashlib.sha1(data, usedforsecurity=False).hexdigest()}"
            (Path(job["log"]).parent / name).write_bytes(data)
            traceback.print_exc()
            os._exit(FOUND)
        number, seconds = next(numbers), time.monotonic() - started
        if number == job["runs"] or (job["seconds"] and seconds >= job["seconds"]):
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            print(f"Done {number} runs in {seconds:.0f} second(s)\nstat::peak_rss_mb: {peak}")
            sys.stdout.flush()
            os._exit(0)

    return run


def run(job: Job, target: Target) -> NoReturn:
    """Until a bound is reached or something is found. Ends the process."""
    with Path(job["log"]).open("wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    logging.disable(logging.CRITICAL)  # the log is libFuzzer's
    try:
        for index, seed in enumerate(target.seeds()):
            (Path(job["corpus"]) / f"seed-{index:03}").write_bytes(seed)
            target.run(seed)
        bound_memory()
        options = [f"-max_len={target.SIZE}", *job["options"]]
        atheris.Setup([sys.argv[0], *options], bounded(job, target))
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
        child = os.fork()
        if child == 0:
            run(job, target)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(json.dumps(statuses))


if __name__ == "__main__":
    main()
