"""A contestant's process, which runs only while it is asked something."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_CLOSE_SECONDS = 10.0
_REASON_CHARACTERS = 300


class WorkerError(Exception):
    """A contestant that does not do what is asked. ``str(error)`` is the reason."""


class Worker:
    """Speaks the lines of ``loadtest/peers/lines.py`` with a process group of its own.

    Between questions the group is stopped (SIGSTOP): threads that spin after a run, and
    whatever else goes on there, take nothing from the contestant that is being measured.

    Args:
        command: of the process; one that cannot be started fails with the first question.
        environment: added to our own.
        log: where its standard error goes.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], log: Path, folder: Path
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        try:
            with log.open("w", encoding="utf-8") as errors:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    cwd=folder,
                    env={**os.environ, **environment},
                    start_new_session=True,
                )
        except OSError as error:
            raise WorkerError(f"cannot be started: {error.strerror}: {command[0]}") from error
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def pid(self) -> int:
        """Of the process, and of its group."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, question: Mapping[str, Any], timeout_seconds: float) -> dict[str, Any]:
        """The answer. Raises :class:`WorkerError`; after one in vain, ``is_alive`` may be false."""
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            line = self._lines.get(timeout=timeout_seconds)
        except queue.Empty:
            self.kill()
            raise WorkerError(f"no answer within {timeout_seconds:g} s") from None
        except OSError:
            line = None
        if line is None:
            self._process.wait()
            raise WorkerError(self._death())
        self._signal(signal.SIGSTOP)
        try:
            answer: dict[str, Any] = json.loads(line)
        except json.JSONDecodeError:
            raise WorkerError(f"not an answer: {line.strip()[:_REASON_CHARACTERS]}") from None
        if "error" in answer:
            raise WorkerError(str(answer["error"])[:_REASON_CHARACTERS])
        return answer

    def close(self) -> None:
        """Ends the process with the end of its input; at the latest after some seconds."""
        self._signal(signal.SIGCONT)
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_CLOSE_SECONDS)
        self.kill()

    def kill(self) -> None:
        """Ends whatever is left of the process group."""
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _death(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last = lines[-1][:_REASON_CHARACTERS] if lines else "no message"
        return f"ended with status {self._process.returncode}: {last}"
