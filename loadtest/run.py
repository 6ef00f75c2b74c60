"""One load test: prepares, sends requests for a while, summarises."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from client.aio import AsyncClient
from client.encoder_types import InputType
from client.types import Model, ModelState
from loadtest import arrivals, driver
from loadtest.prompts import LengthRange, Prompts, read_lines
from loadtest.statistics import OK, Sample, Summary, summarise
from loadtest.tasks import RequestSpec, Task, sender

_PROGRESS_SECONDS = 0.25
_CALIBRATION_LINES = 32


class UnsuitableModelError(Exception):
    """The server has the model, but it is not ready or does not support the task."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What to run. ``lengths`` are prompt tokens; ``None`` sends each line of the file as it is."""

    target: str
    task: Task
    model: str
    concurrency: int | None
    """Clients of a closed loop; maximum in flight of an open loop (``None``: unlimited)."""
    rate: float | None
    """Requests per second of an open loop; ``None`` for a closed loop."""
    duration_seconds: float
    warmup_seconds: float
    timeout_seconds: float
    seed: int
    prompts: Path | None
    lengths: LengthRange | None
    max_new_tokens: int | None
    ignore_eos: bool
    input_type: InputType | None = None
    """What the texts of embed are for."""


@dataclass(frozen=True, slots=True)
class Result:
    summary: Summary
    model: Model


async def run(plan: Plan, console: Console) -> Result:
    """Runs ``plan``. Requests in flight at its end may finish, up to ``timeout_seconds``.

    Raises:
        TriuneError: the server or the model is not available.
        UnsuitableModelError: the model does not support the task.
    """
    async with AsyncClient(plan.target, timeout_seconds=plan.timeout_seconds) as client:
        model = await _suitable_model(client, plan)
        lines = read_lines(plan.prompts)
        words = plan.lengths and await _in_words(client, plan.model, lines, plan.lengths)
        spec = RequestSpec(
            task=plan.task,
            model=plan.model,
            prompts=Prompts(lines, words, plan.seed),
            max_new_tokens=plan.max_new_tokens,
            ignore_eos=plan.ignore_eos,
            mask_token=model.mask_token,
            input_type=plan.input_type,
        )
        clock = driver.MonotonicClock()
        window = driver.Window(
            warmup_seconds=plan.warmup_seconds, duration_seconds=plan.duration_seconds
        )
        samples: list[Sample] = []
        async with _progress(clock, window, samples, console):
            await _drive(plan, sender(client, spec, clock), samples.append, clock, window)
    summary = summarise(
        samples, start_seconds=window.start_seconds, duration_seconds=window.duration_seconds
    )
    return Result(summary, model)


async def _drive(
    plan: Plan,
    send: driver.Send,
    record: driver.Record,
    clock: driver.Clock,
    window: driver.Window,
) -> None:
    if plan.rate is None:
        concurrency = plan.concurrency or 1
        await driver.closed_loop(send, record, clock, window, concurrency=concurrency)
        return
    whole_seconds = plan.warmup_seconds + plan.duration_seconds
    due = arrivals.poisson(plan.rate, whole_seconds, plan.seed)
    await driver.open_loop(
        send, record, clock, window, due_seconds=due, max_in_flight=plan.concurrency
    )


async def _suitable_model(client: AsyncClient, plan: Plan) -> Model:
    model = await client.get_model(plan.model)
    if model.state is not ModelState.READY:
        raise UnsuitableModelError(f"{plan.model} is not ready: {model.failure}")
    if not set(plan.task.model_tasks) & set(model.tasks):
        tasks = ", ".join(model.tasks)
        raise UnsuitableModelError(f"{plan.model} does not support {plan.task}, only {tasks}")
    return model


async def _in_words(
    client: AsyncClient, model: str, lines: list[str], tokens: LengthRange
) -> LengthRange:
    """Converts lengths in tokens to words, by the model's ratio over some of the lines."""
    sample = lines[:_CALIBRATION_LINES]
    tokenized = await client.tokenize(model, sample, without_special_tokens=True)
    num_tokens = sum(len(output.token_ids) for output in tokenized.outputs)
    words_per_token = sum(len(line.split()) for line in sample) / num_tokens
    return LengthRange(
        max(1, round(tokens.shortest * words_per_token)),
        max(1, round(tokens.longest * words_per_token)),
    )


@asynccontextmanager
async def _progress(
    clock: driver.Clock, window: driver.Window, samples: list[Sample], console: Console
) -> AsyncIterator[None]:
    """Shows a progress bar while the block runs, if ``console`` is a terminal."""
    columns = (
        TextColumn("{task.description:>10}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[requests]} requests, {task.fields[errors]} errors"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task(
            "", total=window.warmup_seconds + window.duration_seconds, requests=0, errors=0
        )

        def update() -> None:
            now = clock.now()
            measured_seconds = max(0.0, now - window.start_seconds)
            description = "measuring" if measured_seconds else "warming up"
            progress.update(
                bar,
                completed=min(now, window.warmup_seconds) + measured_seconds,
                description="finishing" if now >= window.end_seconds else description,
                requests=len(samples),
                errors=sum(sample.status != OK for sample in samples),
            )

        async def keep_updating() -> None:
            while True:
                update()
                await asyncio.sleep(_PROGRESS_SECONDS)

        updates = asyncio.create_task(keep_updating())
        try:
            yield
        finally:
            updates.cancel()
            update()
