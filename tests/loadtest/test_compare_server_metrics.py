"""What is computed from the responses of servers, and how it is shown."""

import os

import pytest

from loadtest import driver
from loadtest.compare.cpu_times import CpuTimes
from loadtest.compare.http_senders import fit_to_total
from loadtest.compare.measurements import Measurement, row
from loadtest.compare.report import candidate_lines, format_row
from loadtest.compare.server_metrics import responses_per_second
from loadtest.statistics import OK, Sample, TokenArrival


def test_a_response_counts_by_its_share_in_the_window() -> None:
    def sample(sent: float, finished: float, status: str = OK) -> Sample:
        return Sample(due_seconds=sent, sent_seconds=sent, finished_seconds=finished, status=status)

    window = driver.Window(warmup_seconds=1.0, duration_seconds=2.0, start_seconds=1.0)
    samples = [
        sample(0.0, 2.0),  # half of it
        sample(1.0, 3.0),  # all
        sample(2.0, 6.0),  # a quarter
        sample(0.0, 1.0),
        sample(3.0, 4.0),
        sample(1.0, 2.0, "UNAVAILABLE"),
    ]
    assert responses_per_second(samples, window) == pytest.approx(1.75 / 2)


def test_cpu_time_of_a_group_is_not_that_of_others() -> None:
    before, after = CpuTimes(10.0, 1.0, 2.0, 20.0), CpuTimes(12.0, 1.5, 4.0, 23.0)
    assert after.client_cores(before) == 0.25
    assert after.other_cores(before) == 0.25
    used = CpuTimes.now(os.getpgrp())
    assert used.client <= used.group + 1.0
    assert 0 < used.group <= used.machine


@pytest.mark.parametrize(
    ("events", "total", "wanted"),
    [
        ((2, 2), 4, (2, 2)),
        ((1, 1, 2), 2, (1, 1)),  # the last two only signal the end
        ((1, 1), 5, (1, 4)),  # several tokens in one event
        ((), 3, ()),
    ],
)
def test_events_become_tokens(events: tuple, total: int, wanted: tuple) -> None:
    arrivals = [TokenArrival(float(at), count) for at, count in enumerate(events)]
    assert tuple(arrival.num_tokens for arrival in fit_to_total(arrivals, total)) == wanted


def test_a_line_of_a_server_has_its_protocol() -> None:
    about = {
        **{"task": "embed", "work": "w", "precision": "int8", "clients": 8},
        **{"metric": "requests/s", "protocol": "http", "ratio_to_native": 0.875},
        "protocols": {"ours": "OpenAI embeddings HTTP", "a": "TEI HTTP"},
    }
    measured = row(about, Measurement(rates=(6.0,)), {"a": Measurement(rates=(3.0,))}, None)
    assert candidate_lines(measured) == [
        (
            *("embed int8, w", "8", "ours", "OpenAI embeddings HTTP", "6 requests/s"),
            *("0.88 × triune.v1", "–", "–"),
        ),
        ("", "", "a", "TEI HTTP", "3 requests/s", "2.00", "–", "–"),
    ]
    assert "8 clients, by OpenAI embeddings HTTP: ours 6 requests/s" in format_row(measured)
