"""A candidate's process, which runs only while a call is in progress."""

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
    """A process group that speaks the protocol of ``loadtest/peers/json_lines.py``.

    Between calls the group is stopped (SIGSTOP), so that threads that spin after a run take no
    time from the candidate that is being measured.

    Args:
        environment: environment variables to add to our own.
        log_path: file of its standard error.
        folder: working directory.

    Raises:
        WorkerError: the command cannot be started.
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
        """Id of the process and of its group."""
        return self._group.pid

    @property
    def is_alive(self) -> bool:
        return self._group.is_alive

    def call(self, message: Mapping[str, Any], timeout_seconds: float) -> dict[str, Any]:
        """Sends ``message`` and returns the reply.

        Raises ``WorkerError`` if the process reports an error, ends or does not reply in time;
        a process that does not reply is killed. An infinite ``timeout_seconds`` has no limit.
        """
        assert self._process.stdin is not None
        self._group.resume()
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
            line = self._lines.get(timeout=min(timeout_seconds, threading.TIMEOUT_MAX))
        except queue.Empty:
            self.kill()
            raise WorkerError(f"no reply within {timeout_seconds:g} s") from None
        except OSError:
            line = None
        if line is None:
            self._process.wait()
            raise WorkerError(self._group.exit_reason())
        self._group.pause()
        try:
            reply: dict[str, Any] = json.loads(line)
        except json.JSONDecodeError:
            raise WorkerError(f"not a JSON reply: {line.strip()[:_REASON_CHARACTERS]}") from None
        if "error" in reply:
            raise WorkerError(str(reply["error"])[:_REASON_CHARACTERS])
        return reply

    def close(self) -> None:
        """Closes its input, so that it ends; kills it after a few seconds."""
        self._group.resume()
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        self._group.wait_and_kill(_CLOSE_SECONDS)

    def kill(self) -> None:
        """Kills the process group."""
        self._group.kill()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)
