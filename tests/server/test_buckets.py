"""Decode steps padded to bucket sizes: tokens and cached prefixes stay the same."""

import logging
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.config import ServerConfig
from server.engine.cache.slot_store import SlotStore
from server.engine.cache.slot_tensors import Capacity, SlotTensors
from server.engine.engine import Engine
from server.engine.gpu.buckets import Buckets
from server.engine.observer import Unobserved
from server.engine.requests.admission import AdmissionLimits
from server.engine.requests.busy_lanes import BusyLanes
from server.engine.requests.job import Cost, GenerationJob
from server.engine.requests.sequence import DecodingSequence
from server.models.registry import load_bundle
from server.runtime.host_memory import HostMemory
from server.runtime.ort.backend import OrtBackend
from tests.server.fake_backend import decode_spec, reference
from tests.server.mixed_batches import (
    FAULTS,
    NUM_SLOTS,
    mixed_batches,
    run_alone_with_faults,
    run_batched,
)
from tests.server.test_batch_invariance import BatchRunner, run, tokens_by_output
from tests.server.test_forking import assert_same_output
from tests.server.worker_harness import MAX_LENGTH, MEMORIES, make_harness, make_job


@given(num_slots=st.integers(1, 300), max_length=st.integers(2, 9000), data=st.data())
def test_selects_the_smallest_sufficient_bucket(num_slots, max_length, data) -> None:
    buckets = Buckets.of(num_slots, max_length)
    assert buckets.rows[-1] == num_slots
    assert buckets.tokens[-1] == max_length
    num_rows = data.draw(st.integers(1, num_slots))
    num_tokens = data.draw(st.integers(1, max_length))
    padded = buckets.rows_for(num_rows)
    assert num_rows <= padded <= max(num_rows, 1.5 * (num_rows - 1) + 0.5)
    assert num_tokens <= buckets.tokens_for(num_tokens) <= max(128, 2 * num_tokens)
    assert len(list(buckets)) == len(buckets) == len(set(buckets))
    assert len(buckets) <= 20 * 8


def test_padding_writes_only_to_unused_positions() -> None:
    """Padding goes after a row's last token, or over the last token of a full row."""
    spec = decode_spec(has_source=False, is_recurrent=False)
    cache = SlotTensors(spec.states, 4, MAX_LENGTH, MAX_LENGTH, HostMemory)
    store = SlotStore(cache, Capacity(4, MAX_LENGTH, MAX_LENGTH))

    def admit(id_: int, num_tokens: int) -> DecodingSequence:
        sequence = DecodingSequence.first_of(id_, GenerationJob((5,) * num_tokens, 1))
        store.admit(sequence)
        sequence.num_cached_tokens = num_tokens
        return sequence

    for sequence in (admit(0, MAX_LENGTH), admit(1, 40), admit(2, 10)):
        store.release(sequence)
    running, released = admit(3, 7), admit(4, 9)
    store.release(released)
    # A running sequence, a prefix too short to cache, a full cached prefix, a free slot.
    assert store.padding_positions(0, 4) == [7, 0, MAX_LENGTH - 1, 0]
    running.num_cached_tokens = MAX_LENGTH
    assert store.padding_positions(0, 4) is None
    assert store.padding_positions(1, 3) == [0, MAX_LENGTH - 1, 0]


@pytest.mark.parametrize(("is_recurrent", "num_kept"), [(False, MAX_LENGTH - 1), (True, 0)])
def test_padding_trims_or_drops_a_full_cached_prefix(is_recurrent: bool, num_kept: int) -> None:
    spec = decode_spec(has_source=False, is_recurrent=is_recurrent)
    cache = SlotTensors(spec.states, 2, MAX_LENGTH, MAX_LENGTH, HostMemory)
    store = SlotStore(cache, Capacity(2, MAX_LENGTH, MAX_LENGTH))
    sequence = DecodingSequence.first_of(0, GenerationJob(tuple(range(1, MAX_LENGTH + 1)), 1))
    store.admit(sequence)
    sequence.num_cached_tokens = MAX_LENGTH
    store.release(sequence)
    next_sequence = DecodingSequence.first_of(
        1, replace(sequence.job, prompt=(*sequence.job.prompt, 7))
    )
    assert store.plan_admissions([next_sequence]).num_cached(1) == MAX_LENGTH
    assert store.padding_positions(0, 2) == [num_kept, 0]
    store.check()
    assert store.plan_admissions([next_sequence]).num_cached(1) == num_kept


@pytest.mark.parametrize("memory", ["host", "device"])
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    arrivals=mixed_batches(),
    max_batched_tokens=st.integers(1, 64),
    is_recurrent=st.booleans(),
    has_source=st.booleans(),
)
def test_padding_does_not_change_tokens(
    memory, arrivals, max_batched_tokens, is_recurrent, has_source
) -> None:
    """Covers prefill beside decode, cached prefixes, recurrent states and failing runs."""
    options: dict[str, Any] = {"is_recurrent": is_recurrent, "has_source": has_source}
    batched = make_harness(
        num_slots=NUM_SLOTS,
        max_batched_tokens=max_batched_tokens,
        memory=memory,
        has_buckets=True,
        **options,
        **FAULTS,
    )
    jobs = run_batched(batched, arrivals, (3, 4) if has_source else ())
    for id_, job in enumerate(jobs):
        assert_same_output(batched, id_, run_alone_with_faults(job, **options))


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    shared=st.lists(st.integers(1, 96), min_size=32, max_size=MAX_LENGTH - 2),
    tails=st.lists(
        st.tuples(st.lists(st.integers(1, 96), max_size=6), st.integers(1, 40)),
        min_size=2,
        max_size=10,
    ),
    num_slots=st.integers(1, 5),
)
def test_padding_preserves_cached_prefixes(shared, tails, num_slots) -> None:
    """Prompts with a common prefix run in sequence while short prompts decode beside them."""
    batched = make_harness(num_slots=num_slots, is_recurrent=False, has_buckets=True)
    jobs = []
    for id_, (tail, budget) in enumerate(tails):
        prompt = [*shared, *tail][: MAX_LENGTH - 1] if id_ % 2 == 0 else [*tail, 1]
        jobs.append(make_job(prompt, budget))
        batched.submit(id_, jobs[-1])
        for _ in range(1 + budget // 3):
            batched.step()
    batched.run()
    for id_, job in enumerate(jobs):
        single = make_harness(num_slots=1, is_recurrent=False)
        single.submit(0, job)
        single.run()
        assert batched.tokens_of(id_) == single.tokens_of(0)


def test_padding_restores_recurrent_states_of_cached_prefixes() -> None:
    batched = make_harness(num_slots=8, has_buckets=True, max_batched_tokens=64)
    prompt = list(range(1, 41))
    batched.submit(0, make_job(prompt, 2))
    batched.run()
    for id_ in range(1, 8):  # the prefix is in the only row that they leave, a padding row
        batched.submit(id_, make_job([id_, 7], 6))
    batched.run()
    assert batched.graph.num_padded_runs
    turn = [*prompt, *batched.tokens_of(0), 50]
    batched.submit(8, make_job(turn, 4))
    batched.run()
    assert batched.completions_of(8)[0].num_reused_tokens > len(prompt)
    assert batched.tokens_of(8) == reference(turn, 4)


async def test_records_all_buckets_before_the_worker_is_ready() -> None:
    engine = Engine(1, Unobserved(), BusyLanes(), 4, lambda _: None)
    padded = make_harness(num_slots=2, has_buckets=True)
    engine.add("fake", [padded.worker], AdmissionLimits(Cost(2, 1000), Cost(2, 1000)))
    await engine.wait_until_ready("fake")
    assert padded.graph.num_runs == 2, "two buckets"
    (handle,) = engine.submit("fake", [make_job([5, 6], 6)])
    tokens: list[int] = []
    while not (updates := await handle.next()).is_last:
        tokens += updates.tokens
    engine.stop()
    assert [*tokens, *updates.tokens] == reference([5, 6], 6)


def test_logs_recorded_buckets_and_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    free = iter([9 << 20, 4 << 20])

    class Shrinking(HostMemory):
        @property
        def free_bytes(self) -> int | None:
            return next(free)

    monkeypatch.setitem(MEMORIES, "shrinking", Shrinking)
    caplog.set_level(logging.INFO)
    recorded = make_harness(num_slots=3, has_buckets=True, memory="shrinking")
    recorded.graph.is_recorded = True
    recorded.worker.prepare()
    assert recorded.worker.stats.num_cuda_graphs == 3
    assert recorded.worker.stats.cuda_graph_bytes == 5 << 20
    assert "3 of 3 sizes of runs are recorded, in 5 MiB" in caplog.text


def test_does_not_pad_if_recording_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = make_harness(has_buckets=True, fail=0)
    broken.worker.prepare()
    assert "recording runs failed" in caplog.text
    broken.graph.fail = -1
    broken.submit(0, make_job([5, 6], 6))
    broken.run()
    assert broken.tokens_of(0) == reference([5, 6], 6)
    assert broken.graph.num_padded_runs == 1, "only the failed recording"


def test_pads_decode_steps() -> None:
    batched = make_harness(num_slots=6, has_buckets=True)
    for id_ in range(5):
        batched.submit(id_, make_job([5 + id_, 7], 8))
    batched.run()
    assert batched.graph.num_padded_runs > 0


@pytest.mark.parametrize("name", ["tiny-decoder", "dates"])
def test_padding_does_not_change_tokens_of_real_graphs(tiny_bundles: Path, name: str) -> None:
    path = tiny_bundles / name / "1"
    unpadded = BatchRunner(load_bundle(path, OrtBackend("cpu", 1), 96))
    backend = OrtBackend("cpu", 1, has_device_memory=True, records=True)
    padded = BatchRunner(load_bundle(path, backend, 96), has_buckets=True)
    rng, worker = random.Random(11), padded.make_worker()
    worker.prepare()
    assert worker.stats.num_cuda_graphs == 0, "a CPU does not record"
    for number in range(10):
        jobs = {10 * number + index: unpadded.job(rng) for index in range(rng.randrange(2, 7))}
        updates = []
        for id_, job in jobs.items():
            updates += worker.step()
            worker.submit(id_, job)
        updates += run(worker)
        for id_, job in jobs.items():
            assert tokens_by_output(updates, id_) == unpadded.tokens_alone(job)


def test_enables_buckets_by_configuration(tmp_path: Path) -> None:
    assert not ServerConfig(bundles=tmp_path).has_buckets
    assert ServerConfig(bundles=tmp_path, devices=("cuda:1",)).has_buckets
    assert not ServerConfig(bundles=tmp_path, devices=("cuda",), cuda_graphs=False).has_buckets
    assert ServerConfig(bundles=tmp_path, has_device_memory=True).has_buckets
    assert not ServerConfig(bundles=tmp_path, devices=("cuda",), num_lanes=2).has_buckets
