"""Follow-up jobs of accepted calls."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest

from server.engine.requests.job import GenerationJob
from server.errors import DeadlineError, OverloadedError
from server.service.attention import plan_attention, read_attention
from server.service.caller import Caller
from server.service.context import ServiceContext
from server.service.follow_up import submit_follow_up
from server.service.generation_options import AttentionOptions, StoppingOptions
from server.service.generation_request import Attention, GenerateRequest
from server.service.service import Service
from tests.server.in_process_service import service_context

MODEL = "tiny-decoder"


async def _attention(context: ServiceContext) -> Attention:
    """The attention weights of an output, as those of a call whose text is complete."""
    model = context.registry.get(MODEL, "")
    (ids,) = model.tokenizer.encode(["7,8,9"])
    job = GenerationJob(prompt=ids, max_new_tokens=2)
    plan = plan_attention(AttentionOptions(), model)
    return await read_attention(context, "", model, plan, job, len(ids) - 1, ids[-1:], "", 0)


async def test_attention_of_a_complete_text_waits_for_a_full_queue(tiny_bundles: Path) -> None:
    async with service_context(tiny_bundles, num_threads=1, num_slots=1, max_queue=0) as context:
        expected = await _attention(context)
        request = GenerateRequest(
            model=MODEL,
            inputs=("7,",),
            stopping=StoppingOptions(max_new_tokens=200, ignore_eos=True),
        )
        chunks = await Service(context).generate_stream(request, Caller("other", None))
        await anext(chunks)  # the only slot is in use
        key, job = context.registry.get(MODEL, "").key, GenerationJob(prompt=(1,), max_new_tokens=0)
        with pytest.raises(OverloadedError):
            context.engine.submit(key, [job], "")
        waiting = asyncio.create_task(_attention(context))
        async for _ in chunks:
            pass
        found = await waiting
    assert found.matrices[0].weights.tolist() == expected.matrices[0].weights.tolist()


async def test_a_follow_up_job_does_not_wait_beyond_its_deadline(tiny_bundles: Path) -> None:
    async with service_context(tiny_bundles, num_threads=1, num_slots=1, max_queue=0) as context:
        key, job = context.registry.get(MODEL, "").key, GenerationJob(prompt=(1,), max_new_tokens=9)
        (running,) = context.engine.submit(key, [job], "")
        late = replace(job, deadline=time.monotonic())
        with pytest.raises(DeadlineError):
            await submit_follow_up(context, key, late, None)
        context.engine.cancel([running])
