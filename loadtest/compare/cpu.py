"""Who had the processor: ours, the server's, and what others took meanwhile. From ``/proc``."""

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_TICK = os.sysconf("SC_CLK_TCK")
_IDLE = slice(3, 5)
"""Idle and waiting for a disk; what comes after ``steal`` is counted before already."""
_COUNTED = 8


@dataclass(frozen=True, slots=True)
class Used:
    """Seconds of processor time since some moment, of this process, of a group, and of all."""

    at: float
    client: float
    group: float
    machine: float

    @classmethod
    def now(cls, group: int) -> Self:
        """``group``: a process group's number."""
        return cls(time.monotonic(), time.process_time(), _of_group(group), _of_machine())

    def client_cores(self, before: Self) -> float:
        """How many cores this process had, on the average."""
        return (self.client - before.client) / (self.at - before.at)

    def other_cores(self, before: Self) -> float:
        """How many cores had others than this process and the group; the host's others too."""
        machine = self.machine - before.machine
        ours = self.client - before.client + self.group - before.group
        return max(0.0, machine - ours) / (self.at - before.at)


def _of_machine() -> float:
    fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
    ticks = [int(field) for field in fields[:_COUNTED]]
    return (sum(ticks) - sum(ticks[_IDLE])) / _TICK


def _of_group(group: int) -> float:
    """Of its processes that are there, and of their children that were waited for."""
    ticks = 0
    for process in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name is in parentheses and may hold anything.
            fields = process.read_text(encoding="utf-8").rpartition(")")[2].split()
            if int(fields[2]) == group:
                ticks += sum(map(int, fields[11:15]))
    return ticks / _TICK
