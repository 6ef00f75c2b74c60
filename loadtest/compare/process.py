"""A process with children of its own, which runs only while it is wanted."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from loadtest.compare.errors import WorkerError
from loadtest.compare.reaper import reaper

_REASON_CHARACTERS = 300


class ProcessGroup:
    """A command in a process group of its own. While it is paused, no thread of it runs.

    The group does not outlive this process.

    Args:
        command: one that cannot be started raises ``WorkerError``.
        environment: added to our own.
        log: where its standard error goes; its output too, if ``with_pipes`` is false.
        talks: whether its input and output are pipes.
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
                    env={**os.environ, **environment},
                    start_new_session=True,
                )
        except OSError as error:
            raise WorkerError(f"cannot be started: {error.strerror}: {command[0]}") from error
        self._reaper.watch(self.pid)

    @property
    def pid(self) -> int:
        """Of the process, and of its group."""
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def terminate(self) -> None:
        """Does not wait."""
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
        """Why it ended, as well as its log tells."""
        lines = self._log_path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last = lines[-1].strip()[:_REASON_CHARACTERS] if lines else "no message"
        return f"ended with status {self.process.returncode}: {last}"

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)
