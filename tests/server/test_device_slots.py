"""Slots in device memory give the same tokens as slots in host memory, in any batch."""

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
from tests.server.fake_backend import host_view
from tests.server.mixed_batches import (
    FAULTS,
    NUM_SLOTS,
    mixed_batches,
    run_alone_with_faults,
    run_batched,
)
from tests.server.test_batch_invariance import BatchRunner, run, tokens_by_output
from tests.server.test_forking import assert_same_output
from tests.server.worker_harness import make_harness, make_job


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(
    arrivals=mixed_batches(),
    max_batched_tokens=st.integers(1, 64),
    is_recurrent=st.booleans(),
    has_source=st.booleans(),
)
def test_device_slots_give_the_same_tokens_as_host_slots(
    arrivals, max_batched_tokens, is_recurrent, has_source
) -> None:
    """Compares batches on the device with each job alone on the host. Some runs fail."""
    options: dict[str, Any] = {"is_recurrent": is_recurrent, "has_source": has_source}
    batched = make_harness(
        num_slots=NUM_SLOTS,
        max_batched_tokens=max_batched_tokens,
        memory="device",
        **options,
        **FAULTS,
    )
    jobs = run_batched(batched, arrivals, (3, 4) if has_source else ())
    for tensor in batched.cache.rows(0, NUM_SLOTS).values():
        assert np.isfinite(host_view(tensor)).all()
    for id_, job in enumerate(jobs):
        assert_same_output(batched, id_, run_alone_with_faults(job, **options))


@pytest.mark.parametrize("memory", ["host", "device"])
def test_copies_cached_prefixes_within_the_device(memory: str) -> None:
    batched = make_harness(num_slots=3, is_recurrent=False, memory=memory, max_batched_tokens=64)
    prompt = [*range(1, 41)]
    batched.submit(0, make_job(prompt, 4))
    batched.submit(1, make_job([7], 12))
    batched.run()
    before = batched.recorder.num_tokens("prefill")
    batched.submit(2, make_job([*prompt, 50], 4))
    batched.submit(3, GenerationJob((*prompt, 51), 4, beams=Beams(2)))
    batched.run()
    assert batched.recorder.num_tokens("prefill") < before + 40, "the cached prefix was reused"
    single = make_harness(num_slots=3, is_recurrent=False)
    single.submit(2, make_job([*prompt, 50], 4))
    single.run()
    assert batched.tokens_of(2) == single.tokens_of(2)


@pytest.fixture(scope="module", params=["tiny-decoder", "dates"])
def runners(request: pytest.FixtureRequest, tiny_bundles: Path) -> tuple[BatchRunner, BatchRunner]:
    """The same real graphs in host memory and in device memory."""
    path = tiny_bundles / request.param / "1"
    host, device = OrtBackend("cpu", 1), OrtBackend("cpu", 1, has_device_memory=True)
    return BatchRunner(load_bundle(path, host, 96)), BatchRunner(load_bundle(path, device, 96))


def test_real_graphs_give_the_same_tokens_in_host_and_device_memory(
    runners: tuple[BatchRunner, BatchRunner],
) -> None:
    on_host, on_device = runners
    rng, worker = random.Random(7), on_device.make_worker()
    for number in range(12):
        jobs = {10 * number + index: on_host.job(rng) for index in range(rng.randrange(2, 7))}
        updates = []
        for id_, job in jobs.items():
            updates += worker.step()
            worker.submit(id_, job)
        updates += run(worker)
        for id_, job in jobs.items():
            assert tokens_by_output(updates, id_) == on_host.tokens_alone(job)
