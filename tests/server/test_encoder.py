"""Encoder batching: which texts run together and which may overtake others."""

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from server.engine.encoder_batch import BatchLimits, form_batch
from server.engine.encoder_queue import (
    MAX_CANDIDATES,
    MAX_OVERTAKEN,
    EncoderQueue,
    QueuedText,
)
from server.engine.requests.job import EncodingJob
from server.engine.requests.lifecycle import Outcome
from server.engine.requests.update import JobTimes
from tests.server.fake_encoder import FakeEncoder, make_encoder_worker

LIMITS = BatchLimits(max_padded_tokens=64)


def _queue(*jobs: EncodingJob) -> EncoderQueue:
    queue = EncoderQueue()
    for id_, job in enumerate(jobs):
        queue.add(QueuedText(id_, job, JobTimes(0.0)))
    return queue


@given(st.lists(st.integers(1, 100), min_size=1, max_size=40))
def test_batch_includes_the_first_text_and_respects_limits(lengths: list[int]) -> None:
    batch = form_batch(lengths, LIMITS)
    assert batch[0] == 0
    assert len(set(batch)) == len(batch)
    batch_lengths = [lengths[index] for index in batch]
    padded = max(batch_lengths) * len(batch_lengths)
    assert len(batch) == 1 or padded <= LIMITS.max_padded_tokens
    assert padded <= LIMITS.max_padding * sum(batch_lengths)


def test_takes_half_of_a_short_queue() -> None:
    """A batch holds 64 tokens. A full batch needs twice as much in the queue."""
    sizes = [len(form_batch([8] * waiting, LIMITS)) for waiting in (1, 3, 4, 8, 10, 12, 16, 40)]
    assert sizes == [1, 3, 4, 4, 5, 6, 8, 8]


def test_takes_all_texts_of_a_request_that_fit() -> None:
    """Its caller can send no more before all have ended."""
    worker = make_encoder_worker(FakeEncoder(), LIMITS)
    for id_ in range(6):
        worker.submit(id_, EncodingJob((2,) * 8, num_texts=6))
    assert len(worker.step()) == 6
    for id_ in range(6):
        worker.submit(id_, EncodingJob((2,) * 8))
    assert len(worker.step()) == 4


@given(st.lists(st.booleans(), min_size=1))
def test_overtakes_only_bulk_work(are_bulk: list[bool]) -> None:
    """The oldest interactive text is first, and the oldest of all after some batches."""
    queue = _queue(*(EncodingJob((2,), is_bulk=is_bulk) for is_bulk in are_bulk))
    oldest_interactive = next((i for i, is_bulk in enumerate(are_bulk) if not is_bulk), 0)
    firsts = [queue.next_candidates()[0].id for _ in range(MAX_OVERTAKEN + 1)]
    assert firsts == [oldest_interactive] * MAX_OVERTAKEN + [0]


def test_ends_cancelled_and_late_texts_once() -> None:
    queue = _queue(*(EncodingJob((2,), deadline=deadline) for deadline in (3.0, 1.0, None, 2.0)))
    queue.cancel(3)
    queue.cancel(3)
    queue.cancel(9)
    ended = []
    for text, outcome in queue.due(2.0):
        queue.remove(text)
        ended.append((text.id, outcome))
    assert ended == [(3, Outcome.CANCELLED), (1, Outcome.DEADLINE)]
    assert not list(queue.due(2.5))
    assert [text.id for text in queue.next_candidates()] == [0, 2]


def test_ended_texts_leave_no_deadlines_behind() -> None:
    queue = _queue(EncodingJob((2,), deadline=1e9))
    tracemalloc.start()
    try:
        for id_ in range(1, 50_000):
            text = QueuedText(id_, EncodingJob((2,), deadline=1e9), JobTimes(0.0))
            queue.add(text)
            queue.remove(text)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size < 1 << 20
    assert [text.id for text in queue.next_candidates()] == [0]


def test_starves_neither_bulk_nor_interactive_texts() -> None:
    """Bulk texts differ in length, so each runs alone, while new texts keep arriving."""
    encoder = make_encoder_worker(FakeEncoder(), LIMITS)
    num_bulk, length = 5, 20
    for id_ in range(num_bulk):
        encoder.submit(id_, EncodingJob((2,) * (length + 40 * id_), is_bulk=True))
    runs: list[list[int]] = []
    for id_ in range(num_bulk, num_bulk + 16):
        encoder.submit(id_, EncodingJob((2,)))
        runs.append([update.id for update in encoder.step()])
    assert runs[:8] == [[5], [6], [7], [0], [8, 9], [10], [11], [1]]
    assert [run for run in runs if run[0] < num_bulk] == [[0], [1], [2], [3]]


def test_a_batch_is_chosen_from_the_oldest_texts() -> None:
    """A text behind them waits, though it is as long as the first."""
    encoder = make_encoder_worker(FakeEncoder(), LIMITS)
    encoder.submit(0, EncodingJob((2,) * 8))
    for id_ in range(1, MAX_CANDIDATES + 1):
        encoder.submit(id_, EncodingJob((2,) * 60))
    encoder.submit(MAX_CANDIDATES + 1, EncodingJob((2,) * 8))
    assert [update.id for update in encoder.step()] == [0]
