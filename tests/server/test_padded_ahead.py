"""Padded decode steps that start before they are asked for."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from server.engine.cache.slot_tensors import Capacity, SlotTensors
from server.engine.gpu.buckets import Buckets
from server.engine.gpu.padded_decode import PaddedDecode
from server.engine.requests.job import GenerationJob
from server.engine.requests.sequence import DecodingSequence
from server.runtime.contract import FEW_ROWS, Pending
from server.runtime.host_memory import HostMemory
from server.runtime.memory import Array
from tests.server.best_decode import TIMEOUT, BestDecode, beside
from tests.server.fake_backend import Early, FakeDecode, Late, Start, decode_spec, next_token
from tests.server.worker_harness import MAX_LENGTH

NUM_SLOTS = 4


def padded(
    graph: FakeDecode, num_slots: int = NUM_SLOTS, tokens: tuple[int, ...] = (64,)
) -> PaddedDecode:
    spec = decode_spec(has_source=False, is_recurrent=False)
    capacity, buckets = Capacity(num_slots, MAX_LENGTH, MAX_LENGTH), Buckets.of(num_slots, 64)
    buckets = Buckets(buckets.rows, tokens)
    cache = SlotTensors(spec.states, num_slots, MAX_LENGTH, MAX_LENGTH, HostMemory)
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


@dataclass
class Asked:
    """What is known of the next step. ``best``: the best tokens that it was asked with."""

    possible: bool = True
    likely: bool = True
    best: list[list[int]] = field(default_factory=list)

    def is_possible(self) -> bool:
        return self.possible

    def is_likely(self, best: Sequence[int]) -> bool:
        self.best.append(list(best))
        return self.likely


ALWAYS = Asked()


@pytest.fixture(params=[False, True], ids=["inputs of the host", "inputs of the device"])
def feeds_back(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def ahead(
    running: Sequence[DecodingSequence], padding: Sequence[int] = (), *, feeds_back: bool
) -> tuple[PaddedDecode, BestDecode]:
    """Runs a step and applies it, once the next one has run too."""
    graph = BestDecode(feeds_back=feeds_back)
    decode = padded(graph)
    best = expected(running)
    decode.run(running, padding, ALWAYS)
    apply(running, best)
    return decode, graph


def test_a_step_that_started_ahead_does_not_run_again() -> None:
    graph, running, asked = BestDecode(), sequences(5, 6), Asked()
    decode = padded(graph)
    first = expected(running)
    decode.run(running, [], asked)
    assert asked.best == [first]
    assert len(graph.steps) == 2
    assert decode.best_tokens == first, "of the step that was asked for"
    apply(running, first)
    decode.run(running, [])
    assert decode.best_tokens == expected(running)
    assert graph.steps == [([5, 6], [0, 0]), (first, [1, 1])]


# How a device runs a step: at once, when it is waited for, or beside the host.
STARTS: dict[str, Callable[[], Start]] = {
    "early": lambda: Early,
    "late": lambda: Late,
    "beside": beside,
}


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("feeds_back", [False, True])
def test_each_step_starts_the_next(start: str, feeds_back: bool) -> None:
    graph, running = BestDecode(feeds_back=feeds_back), sequences(5, 6)
    graph.start = STARTS[start]()
    decode = padded(graph)
    for _ in range(6):
        decode.run(running, [0, 0], ALWAYS)
        assert decode.best_tokens is not None
        assert decode.best_tokens[:2] == expected(running)
        apply(running, expected(running))
    decode.wait()
    assert [ids[0] for ids, _ in graph.steps[:6]] == running[0].tokens[:-1]
    assert [ids[2] for ids, _ in graph.steps[:6]] == [0] * 6, "padding"
    assert [cached for _, cached in graph.steps[:6]] == [[n, n, 0, 0] for n in range(6)]


def test_starts_no_step_that_is_unlikely() -> None:
    graph, running = BestDecode(), sequences(5)
    decode = padded(graph)
    decode.run(running, [], Asked(likely=False))
    decode.wait()
    assert len(graph.steps) == 1


def test_does_not_ask_for_tokens_if_no_step_is_possible() -> None:
    graph, running, asked = BestDecode(feeds_back=True), sequences(5), Asked(possible=False)
    decode = padded(graph)
    decode.run(running, [], asked)
    assert (len(graph.steps), asked.best) == (1, [])


def test_a_step_of_few_rows_starts_before_tokens_are_known() -> None:
    """It is over the tokens that the device found, so it is the one that is asked for."""
    order: list[str] = []
    graph, running, asked = BestDecode(feeds_back=True), sequences(5, 6), Asked(likely=False)
    graph.start = logging_starts(order)
    decode = padded(graph)
    for _ in range(3):
        decode.run(running, [], asked)
        apply(running, expected(running))
    assert asked.best == []
    assert order == ["start", "start", "wait", "start", "wait", "start", "wait"]
    decode.wait()
    assert order[-1] == "drop"


def test_a_step_of_many_rows_starts_when_its_tokens_are_known() -> None:
    order: list[str] = []
    graph, running = BestDecode(feeds_back=True), sequences(*range(5, 6 + FEW_ROWS))
    graph.start = logging_starts(order)
    decode = padded(graph, len(running))
    for _ in range(2):
        decode.run(running, [], ALWAYS)
        assert decode.best_tokens == expected(running)
        apply(running, expected(running))
    assert order == ["start", "wait", "start", "wait", "start"]


def logging_starts(order: list[str]) -> Start:
    @dataclass
    class Logged:
        pending: Pending

        def wait(self) -> Array | None:
            order.append("wait")
            return self.pending.wait()

        def drop(self) -> None:
            order.append("drop")
            self.pending.drop()

    def start(run: Callable[[], Array | None]) -> Pending:
        order.append("start")
        return Logged(Early(run))

    return start


def test_a_longer_bucket_begins_with_the_tokens_of_the_host() -> None:
    """Each bucket has inputs of its own."""
    graph, running = BestDecode(feeds_back=True), sequences(5)
    decode = padded(graph, tokens=(3, MAX_LENGTH))
    for _ in range(6):
        decode.run(running, [], ALWAYS)
        assert decode.best_tokens == expected(running)
        apply(running, expected(running))
    assert [cached for _, cached in graph.steps] == [[n] for n in range(7)]


def test_starts_no_step_if_the_graph_finds_no_best_tokens() -> None:
    graph, running = FakeDecode(is_padded=True), sequences(5)
    decode = padded(graph)
    decode.run(running, [], ALWAYS)
    decode.wait()
    assert graph.num_runs == 1
    assert decode.best_tokens is None
    assert decode.read_logits(1).argmax() == next_token([5])


def test_another_token_drops_the_step(feeds_back: bool) -> None:
    running = sequences(5, 6)
    decode, graph = ahead(running, feeds_back=feeds_back)
    running[1].tokens[-1] = 9
    decode.run(running, [])
    assert decode.best_tokens == expected(running)
    assert len(graph.steps) == 3


def test_an_ended_sequence_drops_the_step(feeds_back: bool) -> None:
    running = sequences(5, 6)
    decode, graph = ahead(running, feeds_back=feeds_back)
    decode.run(running[:1], [])
    assert decode.best_tokens == expected(running[:1])
    assert graph.steps[2] == ([running[0].tokens[1]], [1])
    apply(running[:1], expected(running[:1]))
    decode.run(running, [])
    assert decode.best_tokens == expected(running), "the dropped step lost no tokens"


def test_a_new_sequence_drops_the_step(feeds_back: bool) -> None:
    running = sequences(5, 6)
    decode, graph = ahead(running[:1], feeds_back=feeds_back)
    decode.run(running, [])
    assert decode.best_tokens == expected(running)
    assert len(graph.steps) == 3


def test_padding_stays_where_it_is(feeds_back: bool) -> None:
    """One token after the other is written there; the rows' sequences need none of them."""
    running = sequences(5)
    decode, graph = ahead(running, [7, 0], feeds_back=feeds_back)
    decode.run(running, [7, 0])
    assert [cached for _, cached in graph.steps] == [[0, 7, 0], [1, 7, 0]]
    assert decode.best_tokens is not None
    assert decode.best_tokens[:1] == expected(running)


def test_other_padding_drops_the_step(feeds_back: bool) -> None:
    running = sequences(5)
    decode, graph = ahead(running, [7, 0], feeds_back=feeds_back)
    decode.run(running, [8, 0])
    assert [cached for _, cached in graph.steps] == [[0, 7, 0], [1, 7, 0], [1, 8, 0]]
    assert decode.best_tokens is not None
    assert decode.best_tokens[:1] == expected(running)


class FailingRuns:
    """Makes runs with these numbers, from 1 on, raise."""

    def __init__(self, graph: BestDecode, *numbers: int) -> None:
        self._graph, self._numbers = graph, numbers
        graph.on_run = self

    def __call__(self) -> None:
        if self._graph.num_runs in self._numbers:
            raise RuntimeError("the run fails")


def test_a_started_step_that_fails_runs_again(feeds_back: bool) -> None:
    graph, running = BestDecode(feeds_back=feeds_back), sequences(5)
    decode, _ = padded(graph), FailingRuns(graph, 2)
    for _ in range(4):
        decode.run(running, [], ALWAYS)
        assert decode.best_tokens == expected(running)
        apply(running, expected(running))
    assert [cached for _, cached in graph.steps][-1] == [4], "the next starts ahead again"


def test_raises_if_a_step_fails_again(feeds_back: bool) -> None:
    """Runs 3 and 4: with inputs of the device, the step after starts before its failure is seen."""
    graph, running = BestDecode(feeds_back=feeds_back), sequences(5)
    decode, _ = padded(graph), FailingRuns(graph, 2, 3, 4)
    decode.run(running, [], ALWAYS)
    apply(running, expected(running))
    with pytest.raises(RuntimeError, match="the run fails"):
        decode.run(running, [], ALWAYS)
    graph.on_run = lambda: None
    decode.run(running, [])
    assert decode.best_tokens == expected(running)


def test_a_dropped_step_may_fail(feeds_back: bool) -> None:
    graph, running = BestDecode(feeds_back=feeds_back), sequences(5)
    decode, _ = padded(graph), FailingRuns(graph, 2)
    decode.run(running, [], ALWAYS)
    apply(running, [9])
    decode.run(running, [])
    assert decode.best_tokens == expected(running)


def test_waiting_drops_the_step(feeds_back: bool) -> None:
    running = sequences(5)
    decode, graph = ahead(running, feeds_back=feeds_back)
    decode.wait()
    decode.run(running, [])
    assert graph.steps[1] == graph.steps[2], "it runs again"
    assert decode.best_tokens == expected(running)
    decode.wait()
    assert len(graph.steps) == 3


def test_waits_until_the_step_is_done(feeds_back: bool) -> None:
    graph, running, goes_on = BestDecode(feeds_back=feeds_back), sequences(5), threading.Event()
    graph.start = beside()
    decode = padded(graph)
    graph.on_run = lambda: None if graph.num_runs == 1 else assert_set(goes_on)
    decode.run(running, [], ALWAYS)
    goes_on.set()
    decode.wait()
    assert len(graph.steps) == 2


def test_no_step_runs_when_its_memory_is_given_back() -> None:
    order: list[str] = []
    graph = BestDecode(feeds_back=True)
    graph.start = logging_starts(order)
    decode = padded(graph)
    decode.run(sequences(5), [], ALWAYS)
    del decode
    assert order == ["start", "start", "wait", "drop"]


def assert_set(event: threading.Event) -> None:
    assert event.wait(TIMEOUT)
