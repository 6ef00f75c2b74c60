"""Many requests: results come in order, few calls run at a time, and an error keeps its place."""

import threading
from collections.abc import Iterator

import pytest

from client.bulk import batches, in_order


def test_batches_are_full_except_the_last() -> None:
    assert list(batches(range(5), 2)) == [[0, 1], [2, 3], [4]]
    assert list(batches(iter(()), 2)) == []


def test_results_come_in_the_order_of_the_requests() -> None:
    second_is_done = threading.Event()

    def call(request: int) -> int:
        if request == 0:
            assert second_is_done.wait(10)
        if request == 1:
            second_is_done.set()
        return request * request

    found = list(in_order(call, range(20), in_flight=2))
    assert found == [(request, request * request) for request in range(20)]


def test_at_most_so_many_calls_run_at_a_time() -> None:
    meeting = threading.Barrier(3)
    lock = threading.Lock()
    running = most = 0

    def call(_: int) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        meeting.wait(10)  # passes only if three calls run together
        with lock:
            running -= 1

    assert len(list(in_order(call, range(12), in_flight=3))) == 12
    assert most == 3


def test_requests_are_read_as_results_are_taken() -> None:
    num_read = 0

    def requests() -> Iterator[int]:
        nonlocal num_read
        for number in range(1000):
            num_read += 1
            yield number

    results = in_order(lambda number: number, requests(), in_flight=2)
    for _ in range(3):
        next(results)
    assert num_read == 6
    results.close()
    assert num_read == 6


def test_an_error_is_raised_in_its_place_and_ends_the_calls() -> None:
    called: list[int] = []

    def call(request: int) -> int:
        called.append(request)
        if request == 3:
            raise ValueError("the third")
        return request

    results = in_order(call, range(1000), in_flight=2)
    assert [next(results)[1] for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="the third"):
        next(results)
    assert max(called) <= 6
