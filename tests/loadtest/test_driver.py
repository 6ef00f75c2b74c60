"""When the loops send, on a clock that only the test moves."""

import asyncio

from loadtest import driver
from loadtest.driver import Response, Window
from loadtest.statistics import Sample


class ManualClock:
    """Jumps to the time of each sleep; ``send`` may move it too."""

    def __init__(self) -> None:
        self.at_seconds = 0.0

    def now(self) -> float:
        return self.at_seconds

    async def sleep_until(self, at_seconds: float) -> None:
        self.at_seconds = max(self.at_seconds, at_seconds)


def _window(duration: float, warmup: float = 0.0) -> Window:
    return Window(warmup_seconds=warmup, duration_seconds=duration)


async def test_a_closed_loop_sends_after_each_response_until_the_end() -> None:
    clock = ManualClock()
    samples: list[Sample] = []

    async def send(number: int) -> Response:
        clock.at_seconds += 1.0
        return Response(input_tokens=number)

    await driver.closed_loop(send, samples.append, clock, _window(2.5), concurrency=1)
    assert [sample.input_tokens for sample in samples] == [0, 1, 2]
    assert [sample.due_seconds for sample in samples] == [0.0, 1.0, 2.0]
    assert samples[-1].finished_seconds == 3.0


async def test_a_closed_loop_has_one_request_in_flight_per_client() -> None:
    clock = ManualClock()
    samples: list[Sample] = []
    in_flight: list[int] = []
    all_sent = asyncio.Event()

    async def send(number: int) -> Response:
        in_flight.append(number)
        if len(in_flight) == 4:
            clock.at_seconds = 10.0
            all_sent.set()
        await all_sent.wait()
        return Response()

    await driver.closed_loop(send, samples.append, clock, _window(5.0), concurrency=4)
    assert sorted(in_flight) == [0, 1, 2, 3]
    assert len(samples) == 4


async def test_the_window_of_a_closed_loop_waits_for_the_first_response() -> None:
    clock = ManualClock()
    samples: list[Sample] = []
    window = _window(1.0, warmup=2.0)

    async def send(number: int) -> Response:
        clock.at_seconds += 30.0 if number == 0 else 0.5
        return Response()

    await driver.closed_loop(send, samples.append, clock, window, concurrency=1)
    assert window.start_seconds == 30.0
    assert [sample.due_seconds for sample in samples] == [0.0, 30.0, 30.5]


async def test_the_window_of_a_closed_loop_waits_for_the_warm_up_time() -> None:
    clock = ManualClock()
    window = _window(1.0, warmup=2.0)
    samples: list[Sample] = []

    async def send(_: int) -> Response:
        clock.at_seconds += 0.75
        return Response()

    await driver.closed_loop(send, samples.append, clock, window, concurrency=1)
    assert window.start_seconds == 2.0
    assert samples[-1].due_seconds == 2.25


async def test_without_a_warm_up_the_window_starts_with_the_run() -> None:
    clock = ManualClock()
    window = _window(1.0)

    async def send(_: int) -> Response:
        clock.at_seconds += 10.0
        return Response()

    samples: list[Sample] = []
    await driver.closed_loop(send, samples.append, clock, window, concurrency=1)
    assert window.start_seconds == 0.0
    assert len(samples) == 1


async def test_a_closed_loop_pauses_after_a_failure() -> None:
    clock = ManualClock()
    samples: list[Sample] = []
    answers = [
        Response(status="UNAVAILABLE"),
        Response(status="RESOURCE_EXHAUSTED", retry_delay_seconds=2.0),
        Response(),
    ]

    async def send(number: int) -> Response:
        if number == 2:
            clock.at_seconds = 100.0
        return answers[number]

    await driver.closed_loop(send, samples.append, clock, _window(5.0), concurrency=1)
    pause = driver.FAILURE_PAUSE_SECONDS
    assert [sample.due_seconds for sample in samples] == [0.0, pause, pause + 2.0]


async def test_an_open_loop_does_not_wait_for_responses() -> None:
    clock = ManualClock()
    samples: list[Sample] = []
    sent: list[int] = []
    all_sent = asyncio.Event()

    async def send(number: int) -> Response:
        sent.append(number)
        if len(sent) == 3:
            all_sent.set()
        await all_sent.wait()
        return Response()

    due = [0.5, 0.75, 4.0]
    await driver.open_loop(
        send, samples.append, clock, _window(9.0), due_seconds=due, max_in_flight=None
    )
    assert sorted(sample.due_seconds for sample in samples) == due


async def test_an_open_loop_counts_waiting_below_its_limit_as_latency() -> None:
    clock = ManualClock()
    samples: list[Sample] = []

    async def send(number: int) -> Response:
        clock.at_seconds += 10.0
        return Response(input_tokens=number)

    await driver.open_loop(
        send, samples.append, clock, _window(9.0), due_seconds=[1.0, 2.0], max_in_flight=1
    )
    second = samples[1]
    assert second.due_seconds == 2.0
    assert second.sent_seconds >= 11.0
    assert second.finished_seconds - second.due_seconds >= 19.0
