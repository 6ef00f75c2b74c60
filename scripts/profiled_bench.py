"""Our engine's process with PyTorch's profiler in it: ``python -m scripts.profiled_bench``.

``{"op": "profile"}`` with the fields of ``run``, ``rounds`` (runs that are recorded together) and
``trace`` (a file for the kernels, gzipped JSON) runs as ``run`` does. The reply is that of
:mod:`loadtest.gpu.kernel_times`. The profiler records the kernels of all threads and libraries of
the process, those of CUDA graphs too.
"""

import gzip
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import uvloop
from torch.profiler import ProfilerActivity, profile

from loadtest.gpu.kernel_times import kernels_of_trace, of_batches, of_decode
from server.app import SWITCH_SECONDS
from server.bench import Bench
from server.json_lines import Message, serve


class ProfiledBench(Bench):
    """The engine of ``server.bench`` with one request more."""

    async def profile(self, message: Message) -> Message:
        """Runs the inputs and summarizes the device's kernels.

        Raises:
            RuntimeError: PyTorch finds no GPU, or records nothing.
        """
        if not torch.cuda.is_available():
            raise RuntimeError("PyTorch finds no CUDA device here")
        await self.run(message)  # as the profile's: buffers grow only once
        with _profiler():  # the first start takes seconds
            pass
        with _profiler() as recorded:
            for _ in range(message["rounds"]):
                await self.run(message)
            torch.cuda.synchronize()
        kernels = kernels_of_trace(_trace(recorded))
        if not kernels:
            raise RuntimeError("the profiler recorded no kernels")
        path = Path(message["trace"])
        path.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(path, "wt", encoding="utf-8", compresslevel=3) as file:
            json.dump(kernels, file)
        if not message["max_new_tokens"]:
            return of_batches(kernels, message["rounds"])
        # The other half contains prompts, or steps in which some sequences still have them.
        return of_decode(kernels, message["max_new_tokens"] // 2)


def _profiler() -> Any:
    return profile(activities=[ProfilerActivity.CUDA])


def _trace(recorded: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(path))
        return json.loads(path.read_text(encoding="utf-8"))


async def main() -> None:
    """Answers the requests on standard input with an engine."""
    sys.setswitchinterval(SWITCH_SECONDS)
    # The profiler's own output goes to standard error.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    bench = ProfiledBench()
    handlers = {"load": bench.load, "run": bench.run, "profile": bench.profile}
    await serve(sys.stdin, replies, handlers)
    bench.close()


if __name__ == "__main__":
    uvloop.run(main())
