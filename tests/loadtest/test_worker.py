"""A candidate's process: replies, errors, time limits and its end."""

import math
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.compare import measurements
from loadtest.compare.candidates import ROOT
from loadtest.compare.errors import WorkerError
from loadtest.compare.worker import Worker
from tests.loadtest.decode_workload import WORKLOAD


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    command = [sys.executable, "-m", "tests.loadtest.toy_peer"]
    process = Worker(command, {}, tmp_path / "log", ROOT)
    yield process
    process.close()
    assert not process.is_alive


def test_a_worker_is_stopped_between_calls(worker: Worker) -> None:
    assert worker.call({"op": "load", "model": "fast"}, 30) == {"version": "1.2"}
    stopped = os.waitid(os.P_PID, worker.pid, os.WSTOPPED | os.WNOWAIT)
    assert stopped is not None
    assert stopped.si_status == signal.SIGSTOP
    answer = worker.call(WORKLOAD.message(0), 30)
    assert measurements.rate(WORKLOAD, answer) == pytest.approx(2 / 0.25)


def test_a_worker_survives_an_error(worker: Worker) -> None:
    with pytest.raises(WorkerError, match="RuntimeError: this model is not for me"):
        worker.call({"op": "load", "model": "refuses"}, 30)
    assert worker.call({"op": "load", "model": "slow"}, 30) == {"version": "1.2"}


def test_a_worker_that_ends_reports_its_last_line(worker: Worker) -> None:
    worker.call({"op": "load", "model": "dies"}, 30)
    with pytest.raises(WorkerError, match="ended with status 3: out of luck"):
        worker.call(WORKLOAD.message(0), 30)


def test_a_worker_may_have_no_time_limit(worker: Worker) -> None:
    assert worker.call({"op": "load", "model": "fast"}, math.inf) == {"version": "1.2"}


def test_a_worker_that_does_not_reply_is_killed(worker: Worker) -> None:
    worker.call({"op": "load", "model": "hangs"}, 30)
    with pytest.raises(WorkerError, match=r"no reply within 0\.1 s"):
        worker.call(WORKLOAD.message(0), 0.1)
    assert not worker.is_alive
