"""Kills process groups whose parent has ended, even if it was killed.

``python -m loadtest.compare.reaper`` reads a line ``+ID`` for each group that starts and ``-ID``
for each that ends. Its input ends when its parent does; then it kills the groups that are left.
"""

import contextlib
import functools
import os
import signal
import subprocess
import sys
from collections.abc import Iterable


class Reaper:
    """A process that kills the watched groups when this process ends."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "loadtest.compare.reaper"],
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def watch(self, group: int) -> None:
        """Adds ``group`` to the groups to kill."""
        self._send(f"+{group}")

    def forget(self, group: int) -> None:
        """Removes ``group``, which has ended: its id may be reused."""
        self._send(f"-{group}")

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()


@functools.cache
def reaper() -> Reaper:
    """The reaper of this process."""
    return Reaper()


def orphaned_groups(lines: Iterable[str]) -> set[int]:
    """Ids of the groups that started and did not end, according to ``lines``."""
    groups: set[int] = set()
    for line in lines:
        update = groups.add if line.startswith("+") else groups.discard
        update(int(line[1:]))
    return groups


if __name__ == "__main__":
    for each in orphaned_groups(sys.stdin):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(each, signal.SIGKILL)
