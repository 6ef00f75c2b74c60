"""Metrics of a model whose versions are loaded and unloaded."""

import asyncio
import shutil
from pathlib import Path

from client.aio import AsyncClient
from tests.faults.serving import metric_at, wait_until
from tests.server.in_process_server import serving
from tests.server.test_models import DECODER, add_version

NUM_SLOTS = 4


async def test_gauges_count_the_versions_that_are_served(
    tiny_bundles: Path, tmp_path: Path
) -> None:
    shutil.copytree(tiny_bundles / DECODER, tmp_path / DECODER)
    add_version(tmp_path, DECODER, "2")
    async with (
        serving(tmp_path, num_slots=NUM_SLOTS, memory_check_seconds=0.05) as running,
        AsyncClient(f"127.0.0.1:{running.port}", timeout_seconds=60) as client,
    ):
        url = f"http://127.0.0.1:{running.metrics_port}/metrics"
        models = running.registry.models
        plans = [model.memory for model in models if model.memory is not None]
        assert [plan.num_slots for plan in plans] == [NUM_SLOTS, NUM_SLOTS]
        reserved = [plan.cache_bytes for plan in plans]

        def has_gauges(cache: int, num_slots: int) -> bool:
            gauges = [
                metric_at(url, "triune_memory_bytes", model=DECODER, part="cache_reserved"),
                metric_at(url, "triune_slots", model=DECODER),
            ]
            return gauges == [cache, num_slots]

        assert (await client.generate(DECODER, "1,", max_new_tokens=2)).outputs
        await asyncio.to_thread(wait_until, lambda: has_gauges(sum(reserved), 2 * NUM_SLOTS))
        await running.catalog.unload(DECODER, "1")
        await asyncio.to_thread(wait_until, lambda: has_gauges(reserved[1], NUM_SLOTS))


async def test_gauges_count_a_version_before_its_first_call(
    tiny_bundles: Path, tmp_path: Path
) -> None:
    shutil.copytree(tiny_bundles / DECODER, tmp_path / DECODER)
    async with serving(tmp_path, num_slots=NUM_SLOTS) as running:
        url = f"http://127.0.0.1:{running.metrics_port}/metrics"
        assert await asyncio.to_thread(metric_at, url, "triune_slots", model=DECODER) == NUM_SLOTS
        add_version(tmp_path, DECODER, "2")
        await running.catalog.load(DECODER)
        num_slots = await asyncio.to_thread(metric_at, url, "triune_slots", model=DECODER)
        assert num_slots == 2 * NUM_SLOTS


async def test_a_call_counts_for_its_model_if_that_was_unloaded_meanwhile(
    tiny_bundles: Path,
) -> None:
    async with (
        serving(tiny_bundles) as running,
        AsyncClient(f"127.0.0.1:{running.port}", timeout_seconds=60) as client,
    ):
        url = f"http://127.0.0.1:{running.metrics_port}/metrics"

        def num_calls(model: str) -> float:
            return metric_at(url, "triune_requests_total", method="GenerateStream", model=model)

        stream = client.generate_stream(DECODER, "1,", max_new_tokens=150, ignore_eos=True)
        await anext(stream)
        await running.catalog.unload(DECODER)
        assert [chunk async for chunk in stream][-1].usage is not None
        await running.catalog.settled()  # the call has ended on the server, too
        assert await asyncio.to_thread(num_calls, "unknown") == 0
        assert await asyncio.to_thread(num_calls, DECODER) == 1
