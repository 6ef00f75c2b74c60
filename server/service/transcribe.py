"""The Transcribe and TranscribeStream calls: turn recorded speech into text with timestamps."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncGenerator, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from model.bundle import Task
from model.config import Kind
from server.service import validation
from server.service.audio import decoded_audio
from server.service.audio_windows import SAMPLES_PER_UNIT, windows_with_sound
from server.service.caller import Caller
from server.service.context import ServiceContext
from server.service.ctc_plan import plan_ctc
from server.service.ctc_window import CtcCall
from server.service.transcription_plan import plan_transcription
from server.service.transcription_request import (
    Segment,
    TranscribeRequest,
    TranscribeResult,
    TranscriptionChunk,
    TranscriptionFinish,
)
from server.service.transcription_window import TranscriptionCall
from server.service.usage import Timing

T = TypeVar("T")

# Maximum results, per task in progress, that wait for an earlier result.
_MAX_EARLY_RESULTS = 4


async def transcribe(
    request: TranscribeRequest, context: ServiceContext, caller: Caller
) -> TranscribeResult:
    """Transcribes a whole recording.

    Raises:
        ServeError: an option or the recording is invalid, the model is unknown, its queue is full,
            or a job failed.
    """
    segments: list[Segment] = []
    finish = None
    async with contextlib.aclosing(await transcribe_stream(request, context, caller)) as chunks:
        async for chunk in chunks:
            segments += chunk.segments
            finish = chunk.finish
    assert finish is not None, "a stream ends with a finish, or raises"
    text = "".join(segment.text for segment in segments).strip()
    return TranscribeResult(chunk.model, text, tuple(segments), finish)


async def transcribe_stream(
    request: TranscribeRequest, context: ServiceContext, caller: Caller
) -> AsyncGenerator[TranscriptionChunk, None]:
    """Validates a request. Returns the segments of each window once it is transcribed, in order.

    Closing the generator early cancels the jobs of all windows.

    Raises:
        ServeError: see :func:`transcribe`; the generator raises the errors of the recording.
    """
    started = time.monotonic()
    call = await _open(request, context, caller)
    return _chunks(request.audio, call, context, caller, started)


async def _open(
    request: TranscribeRequest, context: ServiceContext, caller: Caller
) -> TranscriptionCall | CtcCall:
    """The call, with its validated request. Encoders decode with CTC."""
    model = context.model_of(request)
    validation.check_task(model, Task.TRANSCRIBE)
    if model.manifest.kind == Kind.ENCODER:
        return CtcCall(plan_ctc(request, model, context, caller), context, caller)
    plan = await plan_transcription(request, model, context, caller)
    return TranscriptionCall(plan, context, caller)


async def _chunks(
    audio: bytes,
    call: TranscriptionCall | CtcCall,
    context: ServiceContext,
    caller: Caller,
    started: float,
) -> AsyncGenerator[TranscriptionChunk, None]:
    plan, name = call.plan, call.plan.model.manifest.name
    async with decoded_audio(audio, plan.audio, context, caller) as samples:
        windows = await context.in_thread(
            partial(windows_with_sound, samples, plan.audio),
            caller,
            len(samples) // SAMPLES_PER_UNIT,
        )
        prepare_seconds = time.monotonic() - started
        tasks = [
            partial(call.transcribe, samples, window, is_first=index == 0)
            for index, window in enumerate(windows)
        ]
        async with contextlib.aclosing(_in_order(tasks, plan.max_windows)) as results:
            async for segments in results:
                if segments:
                    yield TranscriptionChunk(name, segments)
        num_seconds = len(samples) / plan.audio.sample_rate
    is_known = call.language.done()  # false if there was no sound
    finish = TranscriptionFinish(
        language=call.language.result() if is_known else "",
        language_probability=call.language_probability if is_known else 0.0,
        duration_seconds=num_seconds,
        usage=call.usage,
        timing=Timing.of(call.completions, prepare_seconds, started),
    )
    yield TranscriptionChunk(name, finish=finish)


async def _in_order(
    functions: Sequence[partial[Coroutine[Any, Any, T]]], max_tasks: int
) -> AsyncGenerator[T, None]:
    """Awaits the functions, at most ``max_tasks`` at a time. Yields their results in order.

    Raises:
        ServeError: the first failure; the other tasks are cancelled.
    """
    waiting = deque(functions)
    tasks: deque[asyncio.Task[T]] = deque()
    try:
        while waiting or tasks:
            open_tasks = [task for task in tasks if not task.done()]
            while (
                waiting
                and len(open_tasks) < max_tasks
                and len(tasks) < _MAX_EARLY_RESULTS * max_tasks
            ):
                tasks.append(asyncio.create_task(waiting.popleft()()))
                open_tasks.append(tasks[-1])
            if not tasks[0].done():
                await asyncio.wait(open_tasks, return_when=asyncio.FIRST_COMPLETED)
            while tasks and tasks[0].done():
                yield tasks.popleft().result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
