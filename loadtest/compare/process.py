"""A process with children of its own, which runs only while it is wanted."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from loadtest.compare.errors import WorkerError
from loadtest.compare.guard import guard

_REASON_CHARACTERS = 300


class ProcessGroup:
    """A command in a process group of its own. While it is paused, no thread of it runs.

    The group does not outlive this process.

    Args:
        command: one that cannot be started raises ``WorkerError``.
        environment: added to our own.
        log: where its standard error goes; its output too, if ``talks`` is false.
        talks: whether its input and output are pipes.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        folder: Path,
        *,
        talks: bool,
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log
        self._guard = guard()
        try:
            with log.open("w", encoding="utf-8") as errors:
                self.process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
                    stdout=subprocess.PIPE if talks else errors,
                    stderr=errors,
                    text=True,
                    cwd=folder,
                    env={**os.environ, **environment},
                    start_new_session=True,
                )
        except OSError as error:
            raise WorkerError(f"cannot be started: {error.strerror}: {command[0]}") from error
        self._guard.watch(self.pid)

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

    def ask_to_end(self) -> None:
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
        self._guard.forget(self.pid)

    def last_words(self) -> str:
        """Why it ended, as well as its log tells."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last = lines[-1].strip()[:_REASON_CHARACTERS] if lines else "no message"
        return f"ended with status {self.process.returncode}: {last}"

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)
