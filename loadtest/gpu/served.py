"""Our server in a process of its own: its start, its memory, its end."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from client.model_info import Model
from client.sync import Client
from loadtest.compare.errors import WorkerError
from loadtest.compare.process import ProcessGroup
from loadtest.gpu.deadline import Deadline

_READY = re.compile(r"serving .*: gRPC on port (\d+)")
_POLL_SECONDS = 0.05
_CALL_SECONDS = 30.0
_TERMINATE_SECONDS = 15.0
_LINE = 500  # characters
_FOLDER = Path(__file__).resolve().parents[2]


class Served:
    """``python -m server`` on loopback; it is started at once.

    Args:
        bundles: a folder of NAME/VERSION bundles.
        device: as the server's option.
        options: further options of the server.
        log_path: of its standard error; each start overwrites it.
        port: of gRPC; 0 for a free one.

    Raises:
        WorkerError: the process cannot be started.
    """

    def __init__(
        self,
        bundles: Path,
        device: str,
        options: tuple[str, ...],
        log_path: Path,
        port: int = 0,
    ) -> None:
        self.port = port or _free_port()
        self._log_path, self._device = log_path, device
        self._started = time.monotonic()
        command = (
            *(sys.executable, "-m", "server", "--bundles", str(bundles), "--device", device),
            *("--listen", self.target, "--metrics", "127.0.0.1:0", "--http", "none", *options),
        )
        self._group = ProcessGroup(command, {}, log_path, _FOLDER, with_pipes=False)

    @property
    def target(self) -> str:
        """The gRPC address."""
        return f"127.0.0.1:{self.port}"

    @property
    def is_alive(self) -> bool:
        return self._group.is_alive

    def wait_until_ready(self, seconds: float) -> float:
        """Waits for the line that tells that it serves. Returns the seconds since its start.

        Raises:
            WorkerError: it ended, or was not ready within ``seconds``.
        """
        end = time.monotonic() + seconds
        while True:
            is_alive = self._group.is_alive
            if _READY.search(self._log_path.read_text(encoding="utf-8", errors="replace")):
                return time.monotonic() - self._started
            if not is_alive:
                raise WorkerError(self._group.exit_reason())
            if time.monotonic() > end:
                raise WorkerError(f"not ready within {seconds:g} s")
            time.sleep(_POLL_SECONDS)

    def models(self) -> tuple[Model, ...]:
        """Its models, refused ones included. Raises ``TriuneError``."""
        with Client(self.target, timeout_seconds=_CALL_SECONDS) as client:
            return client.list_models()

    def memory(self) -> dict[str, int | None]:
        """Bytes: resident of the process, and in use on its GPU by all processes.

        None where they are not known, as of a process that has ended.
        """
        return {"resident_bytes": _resident_bytes(self._group.pid), "gpu_bytes": self._gpu_bytes()}

    def kill(self) -> None:
        """Kills it at once, as ``kill -9`` does."""
        self._group.kill()

    def stop(self) -> str:
        """Ends it with SIGTERM. Returns how it ended."""
        if not self.is_alive:
            return self._group.exit_reason()
        self._group.terminate()
        self._group.wait_and_kill(_TERMINATE_SECONDS)
        return f"ended with status {self._group.process.returncode}"

    def log_lines(self, *words: str, count: int = 4) -> list[str]:
        """The last ``count`` lines of its log with one of ``words`` in them, cut."""
        text = self._log_path.read_text(encoding="utf-8", errors="replace")
        found = [line for line in text.splitlines() if any(word in line for word in words)]
        return [line[:_LINE] for line in found[-count:]]

    def _gpu_bytes(self) -> int | None:
        if not self._device.startswith("cuda") or shutil.which("nvidia-smi") is None:
            return None
        index = self._device.partition(":")[2] or "0"
        query = ("--query-gpu=memory.used", "--format=csv,noheader,nounits")
        try:
            ran = subprocess.run(
                ("nvidia-smi", "-i", index, *query),
                capture_output=True,
                text=True,
                check=True,
                timeout=10,
            )
            return int(ran.stdout.split()[0]) << 20
        except (OSError, subprocess.SubprocessError, ValueError, IndexError):
            return None


def model_of_task(models: tuple[Model, ...], task: str) -> Model | None:
    """The first model that is served and has this task."""
    return next((model for model in models if task in model.tasks and not model.failure), None)


def states_of(models: tuple[Model, ...]) -> Mapping[str, Any]:
    """What a server says of each model: why it is refused, or its slots."""
    return {
        model.name: {"refused": model.failure} if model.failure else {"slots": model.slots}
        for model in models
    }


def within(deadline: Deadline, seconds: float) -> float:
    """``seconds``, or what is left. Raises ``OutOfTimeError`` if nothing is."""
    return min(seconds, deadline.remaining_seconds())


def _resident_bytes(pid: int) -> int | None:
    try:
        pages = Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1]
    except (OSError, IndexError):
        return None
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
