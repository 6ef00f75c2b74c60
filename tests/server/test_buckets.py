"""Padded decode steps: the same tokens, and no cached prefix is damaged."""

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
from server.engine.cache.slot_tensors import SlotTensors
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
from tests.server.company import FAULTS, NUM_SLOTS, alone, companies, run_together
from tests.server.fake_backend import decode_spec, reference
from tests.server.generating import MAX_LENGTH, MEMORIES, bench, job
from tests.server.test_branching import same
from tests.server.test_mixes import Mixer, run, told


@given(num_slots=st.integers(1, 300), max_length=st.integers(2, 9000), data=st.data())
def test_a_bucket_is_large_enough_and_little_larger(num_slots, max_length, data) -> None:
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


def test_positions_that_padding_writes() -> None:
    """Just after the tokens of a row, or over the last token of a full row."""
    spec = decode_spec(has_source=False, is_recurrent=False)
    cache = SlotTensors(spec.states, 4, MAX_LENGTH, MAX_LENGTH, HostMemory)
    store = SlotStore(cache, 4, MAX_LENGTH)

    def held(id_: int, num_tokens: int) -> DecodingSequence:
        row = DecodingSequence.first_of(id_, GenerationJob((5,) * num_tokens, 1))
        store.admit(row)
        row.num_cached_tokens = num_tokens
        return row

    for row in (held(0, MAX_LENGTH), held(1, 40), held(2, 10)):
        store.release(row)
    one, two = held(3, 7), held(4, 9)
    store.release(two)
    # A running row, a prefix too short to keep, a full cached prefix, and an empty slot.
    assert store.padding_positions(0, 4) == [7, 0, MAX_LENGTH - 1, 0]
    one.num_cached_tokens = MAX_LENGTH
    assert store.padding_positions(0, 4) is None
    assert store.padding_positions(1, 3) == [0, MAX_LENGTH - 1, 0]


def test_a_full_cached_prefix_loses_only_its_last_token() -> None:
    spec = decode_spec(has_source=False, is_recurrent=False)
    cache = SlotTensors(spec.states, 2, MAX_LENGTH, MAX_LENGTH, HostMemory)
    store = SlotStore(cache, 2, MAX_LENGTH)
    row = DecodingSequence.first_of(0, GenerationJob(tuple(range(1, MAX_LENGTH + 1)), 1))
    store.admit(row)
    row.num_cached_tokens = MAX_LENGTH
    store.release(row)
    assert store.padding_positions(0, 2) == [MAX_LENGTH - 1, 0]
    again = DecodingSequence.first_of(1, replace(row.job, prompt=(*row.job.prompt, 7)))
    store.match_prefixes([again])
    assert again.num_cached_tokens == MAX_LENGTH - 1


@pytest.mark.parametrize("memory", ["host", "device"])
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    mixed_jobs=companies(),
    max_batched_tokens=st.integers(1, 64),
    is_recurrent=st.booleans(),
    has_source=st.booleans(),
)
def test_padding_changes_no_token(
    memory, mixed_jobs, max_batched_tokens, is_recurrent, has_source
) -> None:
    """With decoding during other prompts, cached prefixes, recurrent states and failing runs."""
    options: dict[str, Any] = {"is_recurrent": is_recurrent, "has_source": has_source}
    mixed = bench(
        num_slots=NUM_SLOTS,
        max_batched_tokens=max_batched_tokens,
        memory=memory,
        has_buckets=True,
        **options,
        **FAULTS,
    )
    wanted = run_together(mixed, mixed_jobs, (3, 4) if has_source else ())
    for id_, one in enumerate(wanted):
        same(mixed, id_, alone(one, **options))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    shared=st.lists(st.integers(1, 96), min_size=32, max_size=MAX_LENGTH - 2),
    tails=st.lists(
        st.tuples(st.lists(st.integers(1, 96), max_size=6), st.integers(1, 40)),
        min_size=2,
        max_size=10,
    ),
    num_slots=st.integers(1, 5),
)
def test_padding_damages_no_cached_prefix(shared, tails, num_slots) -> None:
    """Prompts with a common prefix follow one another, while short prompts decode beside them."""
    mixed = bench(num_slots=num_slots, is_recurrent=False, has_buckets=True)
    wanted = []
    for id_, (tail, budget) in enumerate(tails):
        prompt = [*shared, *tail][: MAX_LENGTH - 1] if id_ % 2 == 0 else [*tail, 1]
        wanted.append(job(prompt, budget))
        mixed.submit(id_, wanted[-1])
        for _ in range(1 + budget // 3):
            mixed.step()
    mixed.run()
    for id_, one in enumerate(wanted):
        lone = bench(num_slots=1, is_recurrent=False)
        lone.submit(0, one)
        lone.run()
        assert mixed.tokens_of(id_) == lone.tokens_of(0)


async def test_a_lane_records_all_buckets_before_a_worker_is_ready() -> None:
    engine = Engine(1, Unobserved(), BusyLanes(), 4, lambda _: None)
    padded = bench(num_slots=2, has_buckets=True)
    engine.add("fake", [padded.worker], AdmissionLimits(Cost(2, 1000), Cost(2, 1000)))
    await engine.prepared("fake")
    assert padded.graph.num_runs == 2 * 3, "two buckets, three runs each: enough to record them"
    (ticket,) = engine.submit("fake", [job([5, 6], 6)])
    tokens: list[int] = []
    while not (updates := await ticket.next()).is_last:
        tokens += updates.tokens
    engine.stop()
    assert [*tokens, *updates.tokens] == reference([5, 6], 6)


def test_recorded_buckets_and_their_memory_are_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    free = iter([9 << 20, 4 << 20])

    class Shrinking(HostMemory):
        @property
        def free_bytes(self) -> int | None:
            return next(free)

    monkeypatch.setitem(MEMORIES, "shrinking", Shrinking)
    caplog.set_level(logging.INFO)
    recorded = bench(num_slots=3, has_buckets=True, memory="shrinking")
    recorded.graph.is_recorded = True
    recorded.worker.prepare()
    assert recorded.worker.stats.num_cuda_graphs == 3
    assert recorded.worker.stats.cuda_graph_bytes == 5 << 20
    assert "of 3 sizes of decode runs, 3 are recorded, in 5 MiB" in caplog.text


def test_if_recording_fails_steps_are_not_padded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = bench(has_buckets=True, fail=0)
    broken.worker.prepare()
    assert "recording decode runs failed" in caplog.text
    broken.graph.fail = -1
    broken.submit(0, job([5, 6], 6))
    broken.run()
    assert broken.tokens_of(0) == reference([5, 6], 6)
    assert broken.graph.num_padded_runs == 1, "only the failed recording"


def test_steps_are_padded() -> None:
    mixed = bench(num_slots=6, has_buckets=True)
    for id_ in range(5):
        mixed.submit(id_, job([5 + id_, 7], 8))
    mixed.run()
    assert mixed.graph.num_padded_runs > 0


@pytest.mark.parametrize("name", ["tiny-decoder", "dates"])
def test_real_graphs_give_the_same_tokens_when_padded(tiny_bundles: Path, name: str) -> None:
    path = tiny_bundles / name / "1"
    plain = Mixer(load_bundle(path, OrtBackend("cpu", 1), 96))
    backend = OrtBackend("cpu", 1, has_device_memory=True, records=True)
    padded = Mixer(load_bundle(path, backend, 96), has_buckets=True)
    rng, generator = random.Random(11), padded.generator()
    generator.prepare()
    assert generator.stats.num_cuda_graphs == 0, "a CPU does not record"
    for number in range(10):
        some = {10 * number + index: plain.job(rng) for index in range(rng.randrange(2, 7))}
        updates = []
        for id_, wanted in some.items():
            updates += generator.step()
            generator.submit(id_, wanted)
        updates += run(generator)
        for id_, wanted in some.items():
            assert told(updates, id_) == plain.alone(wanted)


def test_configurations_with_buckets(tmp_path: Path) -> None:
    assert not ServerConfig(bundles=tmp_path).has_buckets
    assert ServerConfig(bundles=tmp_path, devices=("cuda:1",)).has_buckets
    assert not ServerConfig(bundles=tmp_path, devices=("cuda",), cuda_graphs=False).has_buckets
    assert ServerConfig(bundles=tmp_path, has_device_memory=True).has_buckets
    assert not ServerConfig(bundles=tmp_path, devices=("cuda",), num_lanes=2).has_buckets
