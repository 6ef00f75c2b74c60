"""The memory budget: sizes, the slots that fit, refusals, and what a server reports."""

import gc
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client.aio import AsyncClient
from client.errors import TriuneError
from model.bundle import BundleError
from model.bundle_files import read_manifest
from server.app import running_server
from server.byte_sizes import in_units, parse_bytes
from server.config import ServerConfig
from server.errors import StartupError
from server.models.heap import trim_heap
from server.models.memory_budget import MemoryPlan, plan_memory
from server.models.registry import State
from server.runtime.process_memory import container_bytes, resident_bytes
from tests.faults.record import record
from tests.server.in_process_server import serving
from tests.server.test_models import DECODER

WHOLE = 10**9


@pytest.mark.parametrize(
    ("text", "size"),
    [
        *[("123", 123), ("1.5k", 1500), ("6G", 6 * 10**9), ("6GiB", 6 << 30), ("2 MB", 2 * 10**6)],
        *[("80%", WHOLE * 8 // 10), ("100 %", WHOLE), ("0.5 KiB", 512)],
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text, WHOLE) == size


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "6X", "6i", "G", "0%", "101%", "1e9", "nan", "9" * 19, "1,5G"]
)
def test_invalid_sizes(text: str) -> None:
    with pytest.raises(ValueError, match=r"size|not"):
        parse_bytes(text, WHOLE)


def test_a_share_of_an_unknown_size() -> None:
    with pytest.raises(ValueError, match="unknown"):
        parse_bytes("80%")


@pytest.mark.parametrize(
    ("size", "text"), [(999, "999 B"), (1500, "1.5 kB"), (94_371_840, "94.4 MB"), (8e9, "8 GB")]
)
def test_sizes_as_text(size: int, text: str) -> None:
    assert in_units(size) == text


def test_this_process_is_within_its_container() -> None:
    whole = container_bytes()
    assert whole is not None
    assert 0 < resident_bytes() < whole


def plan(directory: Path, available: int | None, **options: Any) -> MemoryPlan:
    manifest = read_manifest(directory)
    config = ServerConfig(bundles=directory, num_lanes=2, **options)
    return plan_memory(manifest, 256, 256, config, 1000, available)


def test_prefix_slots_are_given_up_before_slots(tiny_bundles: Path) -> None:
    bundle = tiny_bundles / DECODER / "1"
    full = plan(bundle, None, num_slots=4, num_prefix_slots=2)
    assert (full.num_slots, full.num_prefix_slots) == (4, 2)
    tokens = read_manifest(bundle).graphs["decode"].cache_bytes_per_token
    assert full.cache_bytes == 2 * 6 * 256 * tokens
    row = full.cache_bytes // 6
    for rows, slots in ((6, (4, 2)), (5, (4, 1)), (4, (4, 0)), (3, (3, 0)), (1, (1, 0))):
        fitting = plan(bundle, full.num_bytes - (6 - rows) * row, num_slots=4, num_prefix_slots=2)
        assert (fitting.num_slots, fitting.num_prefix_slots) == slots
        assert fitting.num_bytes == full.num_bytes - (6 - rows) * row
    with pytest.raises(BundleError, match=r"one slot .*--memory-budget are left"):
        plan(bundle, full.num_bytes - 5 * row - 1, num_slots=4, num_prefix_slots=2)


async def test_a_server_within_its_budget(
    tiny_bundles: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Models that do not fit whole get fewer slots each; the log has the sums."""
    only: dict[str, Any] = {
        "num_lanes": 2,
        "num_slots": 1024,
        "num_prefix_slots": 1024,
        "max_length": 256,
    }
    full = plan(tiny_bundles / DECODER / "1", None, num_slots=1024, num_prefix_slots=1024)
    # What earlier tests left must not be freed between this count and the server's.
    gc.collect()
    trim_heap()
    budget = resident_bytes() + full.num_bytes // 2
    caplog.set_level(logging.INFO)
    async with (
        serving(tiny_bundles, memory_budget=budget, **only) as running,
        AsyncClient(f"127.0.0.1:{running.port}", timeout_seconds=60) as client,
    ):
        model = await client.get_model(DECODER)
        answer = await client.generate(DECODER, "7,", max_new_tokens=4)
        models = await client.list_models()
    assert answer.outputs[0].text
    assert 0 < model.slots <= 1024
    assert model.memory is not None
    assert model.memory.prefix_slots < 1024
    total = sum(
        entry.memory.weight_bytes + entry.memory.cache_bytes + entry.memory.working_bytes
        for entry in models
        if entry.memory is not None
    )
    assert total <= full.num_bytes // 2
    assert f"memory budget: {in_units(budget)}" in caplog.text
    assert "of which more than" in caplog.text
    record(
        22,
        "models need more than `--memory-budget`",
        "they get fewer slots, or are refused, with the sums in the log",
        needed_kB=full.num_bytes // 1000,
        left_kB=full.num_bytes // 2000,
        planned_kB=total // 1000,
        slots=f"{model.slots} of 1024",
        prefix_slots=f"{model.memory.prefix_slots} of 1024",
    )


async def test_more_beams_than_the_slots_that_fit(tiny_bundles: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_bundles / DECODER, tmp_path / DECODER)
    options: dict[str, Any] = {"num_lanes": 8, "num_slots": 64, "num_prefix_slots": 0}
    manifest = read_manifest(tmp_path / DECODER / "1")
    config = ServerConfig(bundles=tmp_path, **options)
    budget = resident_bytes() + plan_memory(manifest, 256, 256, config, 0, None).num_bytes // 2
    async with (
        serving(tmp_path, memory_budget=budget, **options) as running,
        AsyncClient(f"127.0.0.1:{running.port}", timeout_seconds=60) as client,
    ):
        slots = (await client.get_model(DECODER)).slots
        assert slots < 64
        await client.generate(DECODER, "7,", max_new_tokens=2, beam_size=slots)
        with pytest.raises(TriuneError, match=f"more than the {slots} slots") as caught:
            await client.generate(DECODER, "7,", max_new_tokens=2, beam_size=slots + 1)
    assert [violation.field for violation in caught.value.violations] == ["decoding.beam_size"]


async def test_a_budget_that_nothing_fits_into(tiny_bundles: Path) -> None:
    config = ServerConfig(
        bundles=tiny_bundles,
        listen="127.0.0.1:0",
        metrics="127.0.0.1:0",
        http=None,
        memory_budget=1 << 20,
    )
    with pytest.raises(StartupError, match="no bundle"):
        async with running_server(config):
            pass
    async with serving(tiny_bundles, memory_budget=1 << 20) as running:
        refused = running.registry.describe(DECODER)
    assert refused.state == State.REFUSED
    assert "--memory-budget are left" in refused.failure


async def test_a_reload_beside_a_running_call_gets_the_same_slots(
    tiny_bundles: Path, tmp_path: Path
) -> None:
    """The replaced model takes no new calls, so its empty slots do not count."""
    shutil.copytree(tiny_bundles / DECODER, tmp_path / DECODER)
    options: dict[str, Any] = {"num_lanes": 1, "num_slots": 1024, "max_length": 256}
    manifest = read_manifest(tiny_bundles / DECODER / "1")
    config = ServerConfig(bundles=tmp_path, **options)
    budget = resident_bytes() + plan_memory(manifest, 256, 256, config, 0, None).num_bytes * 3 // 2
    async with (
        serving(tmp_path, memory_budget=budget, **options) as running,
        AsyncClient(f"127.0.0.1:{running.port}", timeout_seconds=60) as client,
    ):
        assert (await client.get_model(DECODER)).slots == 1024
        stream = client.generate_stream(DECODER, "7,", max_new_tokens=200, ignore_eos=True)
        await anext(stream)
        for _ in range(3):
            await running.catalog.load(DECODER)
            assert (await client.get_model(DECODER)).slots == 1024
        await stream.aclose()


async def test_a_reload_that_gets_fewer_slots_says_when_to_repeat_it(
    tiny_bundles: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The replaced model's slots hold tokens until it is freed."""
    shutil.copytree(tiny_bundles / DECODER, tmp_path / DECODER)
    options: dict[str, Any] = {"num_lanes": 1, "num_slots": 4096, "max_length": 256}
    manifest = read_manifest(tiny_bundles / DECODER / "1")
    config = ServerConfig(bundles=tmp_path, **options)
    budget = resident_bytes() + plan_memory(manifest, 256, 256, config, 0, None).num_bytes // 2
    async with (
        serving(tmp_path, memory_budget=budget, **options) as running,
        AsyncClient(f"127.0.0.1:{running.port}", timeout_seconds=60) as client,
    ):
        assert "load it again" not in caplog.text
        prompts = [f"{number}," for number in range(10, 40)]
        await client.generate(DECODER, prompts, max_new_tokens=200, ignore_eos=True)
        await running.catalog.load(DECODER)
        assert "caches that are about to be freed" in caplog.text
        caplog.clear()
        await running.catalog.settled()
        await running.catalog.load(DECODER)
        assert "load it again" not in caplog.text


async def test_memory_of_calls_during_a_load_is_not_counted_later(
    tiny_bundles: Path, tmp_path: Path
) -> None:
    shutil.copytree(tiny_bundles / DECODER, tmp_path / DECODER)
    options: dict[str, Any] = {"num_lanes": 1, "num_slots": 1024, "max_length": 256}
    manifest = read_manifest(tiny_bundles / DECODER / "1")
    needed = plan_memory(manifest, 256, 256, ServerConfig(bundles=tmp_path, **options), 0, None)
    budget = resident_bytes() + needed.num_bytes * 3 // 2
    async with serving(tmp_path, memory_budget=budget, **options) as running:
        held = np.ones(needed.num_bytes, np.uint8)  # such as recordings in progress
        model = await running.catalog.load(DECODER)
        assert model.memory is not None
        assert model.memory.num_slots < 1024
        del held
        model = await running.catalog.load(DECODER)
        assert model.memory is not None
        assert model.memory.num_slots == 1024
