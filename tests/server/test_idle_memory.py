"""Idle rows of the cache give their memory back, and nothing else changes."""

import asyncio
import mmap
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.aio import AsyncClient
from client.types import MemoryInfo
from server.engine.cache.idle_rows import IdleLimits, IdleRows
from server.runtime.host_memory import HostMemory
from server.runtime.kernels import copy_rows
from server.runtime.memory import Layout
from tests.faults.record import record
from tests.server.fake_backend import host_view, reference
from tests.server.in_process_server import serving
from tests.server.test_models import DECODER
from tests.server.worker_harness import make_harness, make_job

NEVER = IdleLimits(1e9, 1e9)
PRESSED = IdleLimits(1e9, 1e9, is_pressed=True)
LENGTH, WIDTH, HEADS = 64, mmap.PAGESIZE // 4, 2  # a token of a head takes a page


@pytest.fixture(params=["native", "numpy"])
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> HostMemory:
    """Two rows of ones, 128 pages each."""
    if request.param == "numpy":
        monkeypatch.setattr(copy_rows, "_RELEASE_ROW", None)
    elif copy_rows._RELEASE_ROW is None:
        pytest.skip("no native library")
    layout = Layout(2, (HEADS, LENGTH, WIDTH), np.dtype(np.float32), has_tokens=True)
    memory = HostMemory({"key": layout, "value": layout})
    for name in ("key", "value"):
        host_view(memory.rows(name, 0, 2))[...] = 1
    return memory


@pytest.mark.parametrize("first_token", [0, 5, LENGTH])
def test_releases_tokens_of_one_row(memory: HostMemory, first_token: int) -> None:
    memory.release(1, first_token)
    for name in ("key", "value"):
        array = host_view(memory.rows(name, 0, 2))
        assert (array[0] == 1).all()
        assert (array[1, :, :first_token] == 1).all()
        assert not array[1, :, first_token:].any()


def test_pages_are_counted_and_given_back() -> None:
    if copy_rows._RELEASE_ROW is None:
        pytest.skip("no native library")
    layout = Layout(2, (HEADS, LENGTH, WIDTH), np.dtype(np.float32), has_tokens=True)
    memory = HostMemory({"key": layout})
    assert memory.resident_bytes == 0
    host_view(memory.rows("key", 0, 2))[:, :, :10] = 1
    assert memory.resident_bytes == 2 * HEADS * 10 * mmap.PAGESIZE
    memory.release(0, 4)
    assert memory.resident_bytes == HEADS * (10 + 4) * mmap.PAGESIZE
    memory.release(0)
    memory.release(1)
    assert memory.resident_bytes == 0


def test_rows_are_due_after_their_idleness() -> None:
    rows, limits = IdleRows(), IdleLimits(10.0, 100.0)
    rows.use(0)
    rows.use(1)
    assert rows.take_due(lambda row: row == 1, limits, 5.0) is None
    assert rows.take_due(lambda row: row == 1, limits, 14.9) is None
    rows.use(1)  # used again between two checks
    assert rows.take_due(lambda row: row == 1, limits, 16.0) is None
    assert rows.take_due(lambda row: row == 1, limits, 26.0) == 1
    assert rows.take_due(lambda row: row == 1, limits, 99.0) is None
    assert rows.take_due(lambda _: True, IdleLimits(10.0, 100.0, is_pressed=True), 99.0) == 0


def test_prefixes_expire_unless_they_are_used() -> None:
    rows, limits = IdleRows(), IdleLimits(10.0, 100.0)
    assert rows.expired_prefixes([(5, 1), (6, 2)], limits, 0.0) == []
    assert rows.expired_prefixes([(5, 3), (6, 2)], limits, 60.0) == []
    assert rows.expired_prefixes([(5, 3), (6, 2)], limits, 100.0) == [6]
    assert rows.expired_prefixes([(5, 3)], limits, 160.0) == [5]
    pressed = IdleLimits(10.0, 100.0, is_pressed=True)
    assert rows.expired_prefixes([(5, 9), (6, 7), (7, 8)], pressed, 161.0) == [6, 7]


def test_a_row_whose_prefix_was_continued_elsewhere_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = make_harness(num_prefix_slots=4, is_recurrent=False, max_batched_tokens=64)
    slots, given_back = harness.worker._slots, set()
    release = harness.cache.release

    def record_row(row: int, first_token: int = 0) -> None:
        given_back.add(row)
        release(row, first_token)

    monkeypatch.setattr(harness.cache, "release", record_row)

    def give_back() -> None:
        harness.clock.now += 5.0
        while harness.worker.release_memory(IdleLimits(1.0, 1e9)):
            pass

    prompt = list(range(1, 41))
    for id_, tokens in enumerate((prompt, list(range(50, 90)))):
        harness.submit(id_, make_job(tokens, 2))
        harness.run()
    (row,) = (row for row, prefix in slots._prefixes.items() if prefix.tokens[0] == prompt[0])
    give_back()  # what the row holds beyond the prefix
    give_back()
    harness.submit(2, make_job([90, 91, 92], 40))
    harness.step()
    harness.submit(3, make_job([*prompt, *harness.tokens_of(0), 3, 4, 5], 2))
    harness.run()
    assert row not in dict(slots._prefixes.items())
    given_back.clear()
    give_back()
    give_back()
    assert row in given_back


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), is_recurrent=st.booleans())
def test_outputs_do_not_change(seed: int, is_recurrent: bool) -> None:
    """Memory is given back at random moments; the fake graph reads every cached token."""
    rng = random.Random(seed)
    harness = make_harness(num_slots=3, num_prefix_slots=2, is_recurrent=is_recurrent)
    shared = [rng.randrange(1, 97) for _ in range(36)]
    expected = {}
    for id_ in range(8):
        prompt = [*shared[: rng.choice((2, 36))], *(rng.randrange(1, 97) for _ in range(3))]
        expected[id_] = reference(prompt, 6)
        harness.submit(id_, make_job(prompt, 6))
        for _ in range(rng.randrange(12)):
            harness.step()
            harness.clock.now += 1.0
            limits = rng.choice((NEVER, PRESSED, IdleLimits(1.0, 2.0)))
            while harness.worker.release_memory(limits) and rng.random() < 0.9:
                harness.worker.check()
    harness.run()
    assert harness.tokens == expected


async def test_an_idle_server_gives_its_cache_back(tiny_bundles: Path) -> None:
    options = {"memory_check_seconds": 0.02, "idle_seconds": 0.1, "prefix_idle_seconds": 0.2}
    prompt = "".join(f"{number}," for number in range(100, 130))
    texts, peak = set(), 0
    async with (
        serving(tiny_bundles, num_slots=4, num_prefix_slots=4, **options) as running,
        AsyncClient(f"127.0.0.1:{running.port}", timeout_seconds=60) as client,
        asyncio.timeout(60),
    ):

        async def memory() -> MemoryInfo:
            found = (await client.get_model(DECODER)).memory
            assert found is not None
            return found

        async def generate() -> None:
            answer = await client.generate(DECODER, prompt, max_new_tokens=8, ignore_eos=True)
            texts.add(answer.outputs[0].text)

        while not peak:
            await generate()
            peak = (await memory()).cache_resident_bytes
        while (idle := await memory()).cache_resident_bytes:
            pass
        await generate()
    assert len(texts) == 1
    record(
        21,
        "a server is idle",
        "slots and cached prompts that nobody uses give their memory back; outputs stay the same",
        cache_reserved_kB=idle.cache_bytes // 1000,
        resident_after_a_call_kB=peak // 1000,
        resident_when_idle_kB=idle.cache_resident_bytes // 1000,
    )
