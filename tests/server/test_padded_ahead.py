"""Padded decode steps that start before they are asked for."""

import threading
from collections.abc import Sequence

import pytest

from server.engine.cache.slot_tensors import Capacity, SlotTensors
from server.engine.gpu.buckets import Buckets
from server.engine.gpu.padded_decode import PaddedDecode
from server.engine.requests.job import GenerationJob
from server.engine.requests.sequence import DecodingSequence
from server.runtime.host_memory import HostMemory
from tests.server.best_decode import TIMEOUT, BestDecode
from tests.server.fake_backend import FakeDecode, decode_spec, next_token
from tests.server.worker_harness import MAX_LENGTH

NUM_SLOTS = 4


def padded(graph: FakeDecode) -> PaddedDecode:
    spec = decode_spec(has_source=False, is_recurrent=False)
    capacity, buckets = Capacity(NUM_SLOTS, MAX_LENGTH, MAX_LENGTH), Buckets.of(NUM_SLOTS, 64)
    cache = SlotTensors(spec.states, NUM_SLOTS, MAX_LENGTH, MAX_LENGTH, HostMemory)
    return PaddedDecode(spec, graph, cache, capacity, buckets, HostMemory, has_source=False)


def sequences(*tokens: int) -> list[DecodingSequence]:
    """Sequences with a prompt of one token each."""
    return [
        DecodingSequence.first_of(id_, GenerationJob((token,), 50))
        for id_, token in enumerate(tokens)
    ]


def apply(running: Sequence[DecodingSequence], tokens: Sequence[int]) -> None:
    for sequence, token in zip(running, tokens, strict=True):
        sequence.num_cached_tokens += 1
        sequence.tokens.append(token)


def expected(running: Sequence[DecodingSequence]) -> list[int]:
    """The best tokens of the step over the last token of each sequence."""
    return [next_token(sequence.tokens) for sequence in running]


def always(_: list[int]) -> bool:
    return True


def ahead(
    running: Sequence[DecodingSequence], padding: Sequence[int] = ()
) -> tuple[PaddedDecode, BestDecode]:
    """Runs a step and applies it, once the next one has run too."""
    graph = BestDecode()
    decode = padded(graph)
    best = expected(running)
    decode.run(running, padding, always)
    graph.wait_for_steps(2)
    apply(running, best)
    return decode, graph


def test_a_step_that_started_ahead_does_not_run_again() -> None:
    graph, running, asked = BestDecode(), sequences(5, 6), []
    decode = padded(graph)

    def continues(best: list[int]) -> bool:
        asked.append(best)
        return True

    first = expected(running)
    decode.run(running, [], continues)
    graph.wait_for_steps(2)
    assert asked == [first]
    assert decode.best_tokens == first, "of the step that was asked for"
    apply(running, first)
    decode.run(running, [])
    assert decode.best_tokens == expected(running)
    assert graph.steps == [([5, 6], [0, 0]), (first, [1, 1])]


@pytest.mark.parametrize("is_done", [True, False])
def test_each_step_starts_the_next(is_done: bool) -> None:
    """``is_done``: a step has run before it is asked for, or waits until then."""
    graph, running, ask = BestDecode(), sequences(5), threading.Semaphore()
    decode = padded(graph)
    if not is_done:
        graph.on_run = lambda: assert_acquired(ask)
    for number in range(1, 7):
        decode.run(running, [], always)
        assert decode.best_tokens == expected(running)
        apply(running, expected(running))
        if is_done:
            graph.wait_for_steps(number + 1)
        ask.release()
    decode.wait()
    assert [ids[0] for ids, _ in graph.steps] == running[0].tokens
    assert [cached[0] for _, cached in graph.steps] == list(range(7))


def assert_acquired(semaphore: threading.Semaphore) -> None:
    assert semaphore.acquire(timeout=TIMEOUT)


def test_starts_no_step_that_is_unlikely() -> None:
    graph, running = BestDecode(), sequences(5)
    decode = padded(graph)
    decode.run(running, [], lambda best: best != expected(running))
    decode.wait()
    assert len(graph.steps) == 1


def test_starts_no_step_if_the_graph_finds_no_best_tokens() -> None:
    graph, running = FakeDecode(is_padded=True), sequences(5)
    decode = padded(graph)
    decode.run(running, [], always)
    decode.wait()
    assert graph.num_runs == 1
    assert decode.best_tokens is None
    assert decode.read_logits(1).argmax() == next_token([5])


def test_another_token_drops_the_step() -> None:
    running = sequences(5, 6)
    decode, graph = ahead(running)
    running[1].tokens[-1] = 9
    decode.run(running, [])
    assert decode.best_tokens == expected(running)
    assert len(graph.steps) == 3


def test_an_ended_sequence_drops_the_step() -> None:
    running = sequences(5, 6)
    decode, graph = ahead(running)
    decode.run(running[:1], [])
    assert decode.best_tokens == expected(running[:1])
    assert graph.steps[2] == ([running[0].tokens[1]], [1])
    apply(running[:1], expected(running[:1]))
    decode.run(running, [])
    assert decode.best_tokens == expected(running), "the dropped step lost no tokens"


def test_a_new_sequence_drops_the_step() -> None:
    running = sequences(5, 6)
    decode, graph = ahead(running[:1])
    decode.run(running, [])
    assert decode.best_tokens == expected(running)
    assert len(graph.steps) == 3


def test_padding_stays_where_it_is() -> None:
    """One token after the other is written there; the rows' sequences need none of them."""
    running = sequences(5)
    decode, graph = ahead(running, [7, 0])
    decode.run(running, [7, 0])
    assert [cached for _, cached in graph.steps] == [[0, 7, 0], [1, 7, 0]]
    assert decode.best_tokens is not None
    assert decode.best_tokens[:1] == expected(running)


def test_other_padding_drops_the_step() -> None:
    running = sequences(5)
    decode, graph = ahead(running, [7, 0])
    decode.run(running, [8, 0])
    assert [cached for _, cached in graph.steps] == [[0, 7, 0], [1, 7, 0], [1, 8, 0]]
    assert decode.best_tokens is not None
    assert decode.best_tokens[:1] == expected(running)


class FailingRuns:
    """Makes runs with these numbers, from 1 on, raise."""

    def __init__(self, graph: BestDecode, *numbers: int) -> None:
        self._graph, self._numbers = graph, numbers
        self.failed = threading.Event()
        graph.on_run = self

    def __call__(self) -> None:
        if self._graph.num_runs in self._numbers:
            self.failed.set()
            raise RuntimeError("the run fails")


def test_a_started_step_that_fails_runs_again() -> None:
    graph, running = BestDecode(), sequences(5)
    decode, failing = padded(graph), FailingRuns(graph, 2)
    decode.run(running, [], always)
    assert failing.failed.wait(TIMEOUT)
    apply(running, expected(running))
    decode.run(running, [], always)
    assert decode.best_tokens == expected(running)
    graph.wait_for_steps(3)
    assert [cached for _, cached in graph.steps] == [[0], [1], [2]], "the next starts ahead again"


def test_raises_if_a_step_fails_again() -> None:
    graph, running = BestDecode(), sequences(5)
    decode, _ = padded(graph), FailingRuns(graph, 2, 3)
    decode.run(running, [], always)
    apply(running, expected(running))
    with pytest.raises(RuntimeError, match="the run fails"):
        decode.run(running, [], always)
    decode.run(running, [])
    assert decode.best_tokens == expected(running)
    assert graph.num_runs == 4


def test_a_dropped_step_may_fail() -> None:
    graph, running = BestDecode(), sequences(5)
    decode, _ = padded(graph), FailingRuns(graph, 2)
    decode.run(running, [], always)
    apply(running, [9])
    decode.run(running, [])
    assert decode.best_tokens == expected(running)


def test_waiting_drops_the_step() -> None:
    running = sequences(5)
    decode, graph = ahead(running)
    decode.wait()
    decode.run(running, [])
    assert graph.steps[1] == graph.steps[2], "it runs again"
    assert decode.best_tokens == expected(running)
    decode.wait()
    assert len(graph.steps) == 3


def test_waits_until_the_step_is_done() -> None:
    graph, running, goes_on = BestDecode(), sequences(5), threading.Event()
    decode = padded(graph)
    graph.on_run = lambda: None if graph.num_runs == 1 else assert_set(goes_on)
    decode.run(running, [], always)
    goes_on.set()
    decode.wait()
    assert len(graph.steps) == 2


def assert_set(event: threading.Event) -> None:
    assert event.wait(TIMEOUT)
