"""How a comparison ends: in time, and without leaving anybody behind."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.compare.candidates import ROOT
from loadtest.compare.command import _terminated_by_signals
from loadtest.compare.reaper import orphaned_groups
from loadtest.compare.report import Report
from loadtest.compare.time_budget import TimeBudget

# Starts a group with a child that stands still, tells both their numbers, and waits to be killed.
STARTER = """
import sys
from pathlib import Path
from loadtest.compare.process import ProcessGroup
code = "import subprocess, sys; p = subprocess.Popen(['cat']); print(p.pid, flush=True); p.wait()"
group = ProcessGroup([sys.executable, "-c", code], {}, Path(sys.argv[1]), Path("."), talks=True)
child = group.process.stdout.readline().strip()
group.pause()
print(group.pid, child, flush=True)
sys.stdin.read()
"""


def _wait_until_gone(descriptor: int) -> None:
    """A process's descriptor can be read when it has ended."""
    readable, _, _ = select.select([descriptor], [], [], 30)
    os.close(descriptor)
    assert readable


def test_nobody_outlives_a_comparison_that_is_killed(tmp_path: Path) -> None:
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(tmp_path / "log")],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert starter.stdout is not None
    descriptors = [os.pidfd_open(int(pid)) for pid in starter.stdout.readline().split()]
    assert len(descriptors) == 2
    starter.kill()
    starter.wait()
    for descriptor in descriptors:
        _wait_until_gone(descriptor)
    starter.stdout.close()


def test_groups_that_ended_are_not_killed_again() -> None:
    assert orphaned_groups(["+12\n", "+13\n", "-12\n", "+14\n"]) == {13, 14}


def test_a_request_to_end_is_an_exception() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as raised, _terminated_by_signals():
        signal.raise_signal(signal.SIGTERM)
    assert raised.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


def test_time_is_shared_by_cost() -> None:
    now = 100.0
    time_budget = TimeBudget(60.0, (1, 2, 3), lambda: now)
    assert time_budget.begin() == 110.0
    now = 106.0  # it took less: the others have more
    assert time_budget.begin() == pytest.approx(106 + 54 * 2 / 5)
    assert time_budget.has_time(20.0, until=127.6)
    assert not time_budget.has_time(22.0, until=127.6)
    assert time_budget.begin() == 160.0
    assert not time_budget.is_spent
    now = 160.0
    assert time_budget.is_spent
    assert time_budget.progress() == "1:00 of 1:00"


def test_without_a_budget_there_is_always_time() -> None:
    time_budget = TimeBudget(None, (1,), lambda: 5.0)
    assert time_budget.has_time(1e9, time_budget.begin())
    assert not time_budget.is_spent
    assert time_budget.progress() == "0:00"


def test_rows_of_a_round_replace_those_of_the_one_before(tmp_path: Path) -> None:
    report = Report(tmp_path / "rows.json", {})
    report.add({"work": "first"})
    report.put(1, [{"rounds": 1}])
    report.put(1, [{"rounds": 2}])
    assert report.rows == [{"work": "first"}, {"rounds": 2}]
