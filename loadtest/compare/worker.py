"""A contestant's process, which runs only while it is asked something."""

import contextlib
import json
import queue
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest.compare.errors import WorkerError
from loadtest.compare.process import ProcessGroup

_CLOSE_SECONDS = 10.0
_REASON_CHARACTERS = 300


class Worker:
    """Speaks the lines of ``loadtest/peers/json_lines.py`` with a process group of its own.

    Between questions the group is stopped (SIGSTOP): threads that spin after a run, and
    whatever else goes on there, take nothing from the contestant that is being measured.

    Args:
        command: of the process; one that cannot be started fails with the first question.
        environment: added to our own.
        log: where its standard error goes.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], log_path: Path, folder: Path
    ) -> None:
        self._group = ProcessGroup(command, environment, log_path, folder, with_pipes=True)
        self._process = self._group.process
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def pid(self) -> int:
        """Of the process, and of its group."""
        return self._group.pid

    @property
    def is_alive(self) -> bool:
        return self._group.is_alive

    def call(self, message: Mapping[str, Any], timeout_seconds: float) -> dict[str, Any]:
        """The answer. Raises :class:`WorkerError`; after one in vain, ``is_alive`` may be false."""
        assert self._process.stdin is not None
        self._group.resume()
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
            line = self._lines.get(timeout=timeout_seconds)
        except queue.Empty:
            self.kill()
            raise WorkerError(f"no answer within {timeout_seconds:g} s") from None
        except OSError:
            line = None
        if line is None:
            self._process.wait()
            raise WorkerError(self._group.exit_reason())
        self._group.pause()
        try:
            answer: dict[str, Any] = json.loads(line)
        except json.JSONDecodeError:
            raise WorkerError(f"not an answer: {line.strip()[:_REASON_CHARACTERS]}") from None
        if "error" in answer:
            raise WorkerError(str(answer["error"])[:_REASON_CHARACTERS])
        return answer

    def close(self) -> None:
        """Ends the process with the end of its input; at the latest after some seconds."""
        self._group.resume()
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        self._group.wait_and_kill(_CLOSE_SECONDS)

    def kill(self) -> None:
        """Ends whatever is left of the process group."""
        self._group.kill()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)
