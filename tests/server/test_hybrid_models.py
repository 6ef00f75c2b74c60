"""Decoders with convolutions and attention: real graphs whose slots hold two kinds of states."""

import dataclasses
import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.bundle import Dtype, StateRole
from server.engine.cache.slot_tensors import Capacity
from server.engine.generation_worker import GenerationWorker
from server.engine.model_runner import ModelRunner
from server.engine.observer import Unobserved
from server.engine.requests.job import GenerationJob
from server.engine.scheduler import StepLimits
from server.models.registry import load_bundle
from server.runtime.ort.backend import OrtBackend
from tests.server.test_batch_invariance import BatchRunner, run, tokens_by_output
from tests.tiny_hybrid import INT8_NAME, NAME


@pytest.fixture(scope="module", params=[NAME, INT8_NAME])
def runner(request: pytest.FixtureRequest, hybrid_bundles: Path) -> BatchRunner:
    return BatchRunner(load_bundle(hybrid_bundles / request.param / "1", OrtBackend("cpu", 1), 96))


def test_only_the_cache_of_keys_and_values_is_quantized(runner: BatchRunner) -> None:
    is_int8 = runner.model.manifest.name == INT8_NAME
    states = runner.model.manifest.graphs["decode"].states
    assert {state.role for state in states} == {StateRole.KV, StateRole.RECURRENT}
    for state in states:
        is_quantized = is_int8 and state.role == StateRole.KV
        assert state.dtype == (Dtype.INT8 if is_quantized else Dtype.FLOAT32)


def test_a_conversation_continues_in_its_slot(runner: BatchRunner) -> None:
    (prompt,) = runner.model.tokenizer.encode([",".join(map(str, range(20, 34))) + ","])
    worker = runner.make_worker()
    for turn in range(3):
        job = GenerationJob(prompt, 8)
        worker.submit(turn, job)
        updates = run(worker)
        (tokens,) = tokens_by_output(updates, turn).values()
        completion = updates[-1].completion
        assert completion is not None
        assert completion.num_reused_tokens == (len(prompt) - 2 if turn else 0)
        assert {0: tokens} == runner.tokens_alone(job)
        prompt = (*prompt, *tokens, 30)


@settings(max_examples=20, deadline=None)
@given(num_tokens=st.integers(2, 60), max_batched_tokens=st.integers(1, 40), seed=st.integers(0, 9))
def test_chunks_of_a_prompt_do_not_change_tokens(
    runner: BatchRunner, num_tokens: int, max_batched_tokens: int, seed: int
) -> None:
    prompt = tuple(4 + (seed + 7 * k * k) % 90 for k in range(num_tokens))
    job = GenerationJob(prompt, 8)
    spec, replica = runner.model.manifest.graphs["decode"], runner.model.replicas[0]
    capacity = Capacity(2, 96, 96)
    engine = ModelRunner(spec, replica.graphs["decode"], None, capacity, memory=replica.memory)
    limits = StepLimits(2, max_batched_tokens, min_chunk=1)
    clock = itertools.count().__next__
    worker = GenerationWorker(
        "chunks", engine, capacity, limits, lambda: float(clock()), Unobserved()
    )
    worker.submit(0, job)
    worker.submit(1, dataclasses.replace(job, prompt=prompt[::-1]))
    assert tokens_by_output(run(worker), 0) == runner.tokens_alone(job)
