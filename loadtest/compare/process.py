"""A process and its children, which can be paused."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from loadtest.compare.errors import WorkerError
from loadtest.compare.reaper import reaper

# ONNX Runtime would write a device id and events below the home directory.
NO_TELEMETRY = {"ORT_DISABLE_TELEMETRY": "1"}
_REASON_CHARACTERS = 300


class ProcessGroup:
    """A command in a process group of its own. While it is paused, none of its threads run.

    The group is killed at the latest when this process ends.

    Args:
        environment: environment variables to add to our own.
        log_path: file of its standard error, and of its output if ``with_pipes`` is false.
        folder: working directory.
        with_pipes: whether its standard input and output are pipes.

    Raises:
        WorkerError: the command cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log_path: Path,
        folder: Path,
        *,
        with_pipes: bool,
    ) -> None:
        log_path.parent.mkdir(parents=True, exist_ok=True)
        self._log_path = log_path
        self._reaper = reaper()
        try:
            with log_path.open("w", encoding="utf-8") as errors:
                self.process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE if with_pipes else subprocess.DEVNULL,
                    stdout=subprocess.PIPE if with_pipes else errors,
                    stderr=errors,
                    text=True,
                    cwd=folder,
                    env={**NO_TELEMETRY, **os.environ, **environment},
                    start_new_session=True,
                )
        except OSError as error:
            raise WorkerError(f"cannot be started: {error.strerror}: {command[0]}") from error
        self._reaper.watch(self.pid)

    @property
    def pid(self) -> int:
        """Id of the process and of its group."""
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def terminate(self) -> None:
        """Sends SIGTERM; does not wait."""
        self.resume()
        self._signal(signal.SIGTERM)

    def wait_and_kill(self, timeout_seconds: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout_seconds)
        self.kill()

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        self.process.wait()
        self._reaper.forget(self.pid)

    def exit_reason(self) -> str:
        """Its exit status and the last line of its log."""
        lines = self._log_path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last = lines[-1].strip()[:_REASON_CHARACTERS] if lines else "no message"
        return f"ended with status {self.process.returncode}: {last}"

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)
