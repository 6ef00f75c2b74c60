"""Ends process groups whose starter is gone, however it ended.

``python -m loadtest.compare.reaper`` reads ``+ID`` and ``-ID`` of groups, a line each; at the end of
its input, which comes with the end of whoever writes, it kills those that are left.
"""

import contextlib
import functools
import os
import signal
import subprocess
import sys
from collections.abc import Iterable


class Reaper:
    """A process that outlives this one until the groups that are watched are gone."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "loadtest.compare.reaper"],
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def watch(self, group: int) -> None:
        """``group`` is killed when this process ends."""
        self._tell(f"+{group}")

    def forget(self, group: int) -> None:
        """``group`` is gone: its number may become another's."""
        self._tell(f"-{group}")

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()


@functools.cache
def reaper() -> Reaper:
    """That of this process."""
    return Reaper()


def orphaned_groups(lines: Iterable[str]) -> set[int]:
    """The groups that ``lines`` told of and did not take back."""
    groups: set[int] = set()
    for line in lines:
        change = groups.add if line.startswith("+") else groups.discard
        change(int(line[1:]))
    return groups


if __name__ == "__main__":
    for each in orphaned_groups(sys.stdin):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(each, signal.SIGKILL)
