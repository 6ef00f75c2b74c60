"""A comparison ends in time and leaves no process behind."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.compare.candidates import ROOT
from loadtest.compare.command import _sigterm_as_exception
from loadtest.compare.reaper import orphaned_groups
from loadtest.compare.report import Report
from loadtest.compare.time_budget import TimeBudget

# Starts a group with a child, pauses it, prints the ids of both, and waits to be killed.
STARTER = """
import sys
from pathlib import Path
from loadtest.compare.process import ProcessGroup
code = "import subprocess; p = subprocess.Popen(['cat']); print(p.pid, flush=True); p.wait()"
command = [sys.executable, "-c", code]
group = ProcessGroup(command, {}, Path(sys.argv[1]), Path("."), with_pipes=True)
child = group.process.stdout.readline().strip()
group.pause()
print(group.pid, child, flush=True)
sys.stdin.read()
"""


def _wait_until_gone(descriptor: int) -> None:
    """Waits for a process: its descriptor becomes readable when it ends."""
    readable, _, _ = select.select([descriptor], [], [], 30)
    os.close(descriptor)
    assert readable


def test_no_process_outlives_a_killed_comparison(tmp_path: Path) -> None:
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


def test_ended_groups_are_not_orphans() -> None:
    assert orphaned_groups(["+12\n", "+13\n", "-12\n", "+14\n"]) == {13, 14}


def test_sigterm_is_an_exception() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as raised, _sigterm_as_exception():
        signal.raise_signal(signal.SIGTERM)
    assert raised.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


def test_time_is_divided_by_cost() -> None:
    now = 100.0
    time_budget = TimeBudget(60.0, (1, 2, 3), lambda: now)
    assert time_budget.begin_item() == 110.0
    now = 106.0  # the first item took less: the others get more
    assert time_budget.begin_item() == pytest.approx(106 + 54 * 2 / 5)
    assert time_budget.has_time(20.0, until=127.6)
    assert not time_budget.has_time(22.0, until=127.6)
    assert time_budget.begin_item() == 160.0
    assert not time_budget.is_spent
    now = 160.0
    assert time_budget.is_spent
    assert time_budget.progress() == "1:00 of 1:00"


def test_no_budget_is_no_limit() -> None:
    time_budget = TimeBudget(None, (1,), lambda: 5.0)
    assert time_budget.has_time(1e9, time_budget.begin_item())
    assert not time_budget.is_spent
    assert time_budget.progress() == "0:00"


def test_rows_of_a_round_replace_those_of_the_previous_round(tmp_path: Path) -> None:
    report = Report(tmp_path / "rows.json", {})
    report.add({"work": "first"})
    report.replace_from(1, [{"rounds": 1}])
    report.replace_from(1, [{"rounds": 2}])
    assert report.rows == [{"work": "first"}, {"rounds": 2}]
