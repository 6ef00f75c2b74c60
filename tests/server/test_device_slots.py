"""Slots in device memory: the same tokens as with slots in host memory, in any batch."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.engine.decoding.options import Beams
from server.engine.requests.job import GenerationJob
from server.models.registry import load_bundle
from server.runtime.ort.backend import OrtBackend
from tests.server.company import FAULTS, NUM_SLOTS, alone, companies, run_together
from tests.server.fake_backend import host_view
from tests.server.generating import bench, job
from tests.server.test_branching import same
from tests.server.test_mixes import Mixer, run, told


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(
    mixed_jobs=companies(),
    max_batched_tokens=st.integers(1, 64),
    is_recurrent=st.booleans(),
    has_source=st.booleans(),
)
def test_rows_in_device_memory_get_the_same_tokens_as_on_the_host(
    mixed_jobs, max_batched_tokens, is_recurrent, has_source
) -> None:
    """Sampling, beams, greedy, failing runs: batched on the device, and each alone on the host."""
    options: dict[str, Any] = {"is_recurrent": is_recurrent, "has_source": has_source}
    mixed = bench(
        num_slots=NUM_SLOTS,
        max_batched_tokens=max_batched_tokens,
        memory="device",
        **options,
        **FAULTS,
    )
    wanted = run_together(mixed, mixed_jobs, (3, 4) if has_source else ())
    for tensor in mixed.cache.rows(0, NUM_SLOTS).values():
        assert np.isfinite(host_view(tensor)).all()
    for id_, one in enumerate(wanted):
        same(mixed, id_, alone(one, **options))


@pytest.mark.parametrize("memory", ["host", "device"])
def test_a_cached_prefix_is_copied_within_the_device(memory: str) -> None:
    mixed = bench(num_slots=3, is_recurrent=False, memory=memory, max_batched_tokens=64)
    prompt = [*range(1, 41)]
    mixed.submit(0, job(prompt, 4))
    mixed.submit(1, job([7], 12))
    mixed.run()
    before = mixed.recorder.num_tokens("prefill")
    mixed.submit(2, job([*prompt, 50], 4))
    mixed.submit(3, GenerationJob((*prompt, 51), 4, beams=Beams(2)))
    mixed.run()
    assert mixed.recorder.num_tokens("prefill") < before + 40, "the cached prefix was reused"
    lone = bench(num_slots=3, is_recurrent=False)
    lone.submit(2, job([*prompt, 50], 4))
    lone.run()
    assert mixed.tokens_of(2) == lone.tokens_of(2)


@pytest.fixture(scope="module", params=["tiny-decoder", "dates"])
def mixers(request: pytest.FixtureRequest, tiny_bundles: Path) -> tuple[Mixer, Mixer]:
    """The same real graphs over host memory and over device memory."""
    path = tiny_bundles / request.param / "1"
    host, device = OrtBackend("cpu", 1), OrtBackend("cpu", 1, has_device_memory=True)
    return Mixer(load_bundle(path, host, 96)), Mixer(load_bundle(path, device, 96))


def test_real_graphs_give_the_same_tokens_in_both_memories(mixers: tuple[Mixer, Mixer]) -> None:
    on_host, on_device = mixers
    rng, generator = random.Random(7), on_device.generator()
    for number in range(12):
        some = {10 * number + index: on_host.job(rng) for index in range(rng.randrange(2, 7))}
        updates = []
        for id_, wanted in some.items():
            updates += generator.step()
            generator.submit(id_, wanted)
        updates += run(generator)
        for id_, wanted in some.items():
            assert told(updates, id_) == on_host.alone(wanted)
