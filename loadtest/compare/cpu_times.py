"""CPU time of this process, of a process group, and of the whole machine, from ``/proc``."""

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_TICK = os.sysconf("SC_CLK_TCK")
_IDLE = slice(3, 5)
"""The columns ``idle`` and ``iowait`` of ``/proc/stat``."""
_COUNTED = 8  # up to ``steal``: the guest columns are part of ``user`` and ``nice``


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """CPU seconds so far.

    ``at``: monotonic time. ``client``: this process. ``group``: a process group. ``machine``: all.
    """

    at: float
    client: float
    group: float
    machine: float

    @classmethod
    def now(cls, group: int) -> Self:
        """``group``: id of a process group."""
        return cls(time.monotonic(), time.process_time(), _group_seconds(group), _machine_seconds())

    def client_cores(self, before: Self) -> float:
        """Cores that this process used on average since ``before``."""
        return (self.client - before.client) / (self.at - before.at)

    def other_cores(self, before: Self) -> float:
        """Cores that all others used since ``before``: neither this process nor the group.

        It includes time that a hypervisor gave to other guests.
        """
        machine = self.machine - before.machine
        ours = self.client - before.client + self.group - before.group
        return max(0.0, machine - ours) / (self.at - before.at)


def _machine_seconds() -> float:
    fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
    ticks = [int(field) for field in fields[:_COUNTED]]
    return (sum(ticks) - sum(ticks[_IDLE])) / _TICK


def _group_seconds(group: int) -> float:
    """Returns the CPU time of the group's live processes and of their reaped children."""
    ticks = 0
    for process in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The process name is in parentheses and may contain spaces.
            fields = process.read_text(encoding="utf-8").rpartition(")")[2].split()
            if int(fields[2]) == group:
                ticks += sum(map(int, fields[11:15]))
    return ticks / _TICK
