"""The common steps of all encoder calls: look up the model, tokenize, run, count."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import TypeVar

from model.bundle import Task
from server.bounds import MAX_ACTIVE_DIMS, MAX_REQUEST_BYTES, MAX_WINDOW_TOKENS, MAX_WINDOWS
from server.engine.decoding.options import AttentionSelection
from server.engine.engine import HANDLES_AT_ONCE
from server.engine.requests.job import EncodingJob
from server.engine.requests.job_handle import JobHandle
from server.engine.requests.update import Completion, EncoderOutput
from server.errors import InvalidArgumentError, OverloadedError
from server.models.registry import Model
from server.service import validation
from server.service.caller import Caller
from server.service.context import ServiceContext
from server.service.requests import ModelRequest
from server.service.threads import Slice, slices_of
from server.service.usage import Timing, Usage, completion_of, encoder_output_of
from server.text.late_interaction import LateInteraction
from server.text.windows import LengthLimit, TokenizedText, TooLongError, Window, WindowBudget

T = TypeVar("T")

RESULTS_AT_ONCE = 256
_VALUES_PER_JOB = 4  # a job takes as long to build as this many values of a reply


@dataclass(slots=True)
class EncoderCall:
    """The state of one encoder call, from arrival to result. One coroutine owns it.

    With ``is_bulk``, other requests may overtake the call's texts, and it waits where others are
    rejected. ``started``: arrival, in seconds of ``time.monotonic``. ``budget``: windows left.
    """

    model: Model
    context: ServiceContext
    caller: Caller
    is_bulk: bool = False
    started: float = field(default_factory=time.monotonic)
    prepare_seconds: float = 0.0
    _completions: list[Completion] = field(default_factory=list)
    _num_tokens: int = 0
    budget: WindowBudget = field(
        default_factory=lambda: WindowBudget(MAX_WINDOWS, MAX_WINDOW_TOKENS)
    )

    @classmethod
    def open(
        cls,
        request: ModelRequest,
        task: Task,
        context: ServiceContext,
        caller: Caller,
        *,
        is_bulk: bool = False,
    ) -> "EncoderCall":
        """Looks up the request's model.

        Raises:
            ModelNotFoundError: no such model is served.
            InvalidArgumentError: the model does not support the task.
        """
        model = context.model_of(request)
        validation.check_task(model, task)
        return cls(model, context, caller, is_bulk)

    async def tokenize(
        self,
        texts: Sequence[str],
        limit: LengthLimit,
        *,
        pairs: Sequence[str] | None = None,
        with_offsets: bool = False,
        has_images: bool = False,
        reader: LateInteraction | None = None,
        path: str = "inputs[{}]",
        num_per_input: int = 1,
    ) -> list[TokenizedText]:
        """Tokenizes texts, or pairs of texts, in slices.

        Checks the size of the texts and the engine's capacity first, and windows before building
        them.

        Args:
            texts: single texts, or the first text of each pair.
            limit: the length limit, and how longer texts are handled.
            pairs: the second text of each pair; as many as ``texts``.
            with_offsets: whether to return offsets and word ids of the tokens.
            has_images: whether each text comes with an image.
            reader: adds marker and filler tokens, for a multi-vector (late-interaction) model.
            path: the request field of a text, with ``{}`` for its index, for errors.
            num_per_input: number of successive texts that belong to one input.

        Raises:
            InvalidArgumentError: a text is too long for ``limit`` or has no tokens, or the call has
                too many characters or windows; the error names the path.
            ServeError: the queue is full, or the deadline passed.
        """
        validation.check_takes_texts(self.model, path.partition("[")[0], has_images=has_images)
        costs, template = list(map(len, texts)), self.model.manifest.pair_template
        if pairs is not None:
            around = 0 if template is None else template.num_characters
            costs = [cost + len(pair) + around for cost, pair in zip(costs, pairs, strict=True)]
        if sum(costs) > MAX_REQUEST_BYTES:
            raise InvalidArgumentError(
                path.partition("[")[0],
                f"are {sum(costs)} characters to tokenize, prompts and queries repeated: at most "
                f"{MAX_REQUEST_BYTES} are accepted",
            )

        def tokenize_some(start: int, stop: int) -> list[TokenizedText]:
            some_pairs = None if pairs is None else pairs[start:stop]
            try:
                some = self.model.tokenizer.tokenize_windows(
                    *(texts[start:stop], some_pairs, limit, self.budget),
                    with_offsets=with_offsets,
                    template=template,
                    static_tokens=self.model.manifest.static_tokens,
                )
                return some if reader is None else reader.read_all(some, self.budget)
            except TooLongError as error:
                field = path.format((start + error.index) // num_per_input)
                raise InvalidArgumentError(field, str(error)) from error

        parts = await self.prepare(len(texts), slices_of(costs, tokenize_some))
        tokenized = [text for part in parts for text in part]
        for index, text in enumerate(tokenized):
            if not text.windows[0].token_ids:
                raise InvalidArgumentError(path.format(index // num_per_input), "has no tokens")
        return tokenized

    async def prepare(self, num_inputs: int, slices: Sequence[Slice[T]]) -> list[T]:
        """Runs ``slices``, which tokenize or decode inputs, if the engine accepts the inputs.

        Raises:
            ServeError: the queue is full, or the deadline passed.
        """
        started, client = time.monotonic(), self.caller.client

        async def check() -> None:
            self.context.engine.check(self.model.key, num_inputs, client, is_bulk=self.is_bulk)

        await self._when_accepted(check)
        results = await self.context.run_slices(slices, self.caller)
        self.prepare_seconds += time.monotonic() - started
        return results

    def renew_window_budget(self) -> None:
        """Resets the limit of windows, for a call that encodes its texts several times."""
        self.budget = WindowBudget(MAX_WINDOWS, MAX_WINDOW_TOKENS)

    async def run(self, jobs: Sequence[Sequence[EncodingJob]]) -> list[list[EncoderOutput]]:
        """Runs the jobs of each input. If one fails or the caller cancels, cancels the others.

        Returns:
            The outputs in the order and grouping of ``jobs``.

        Raises:
            ServeError: the first failure of any job.
        """
        engine = self.context.engine
        whole = [job for group in jobs for job in group]
        handles = await self._when_accepted(lambda: self._submit(whole))
        try:
            results = await self._results(handles)
        finally:
            engine.cancel(handles)
        self._num_tokens += sum(job.num_tokens for job in whole)
        outputs = iter(results)
        return [[next(outputs) for _ in group] for group in jobs]

    async def _results(self, handles: Sequence[JobHandle]) -> list[EncoderOutput]:
        """Awaits the outputs of all jobs, in order. Yields to other tasks regularly."""
        results = []
        for handle in handles:
            by_id: dict[int, EncoderOutput] = {}
            for _ in handle.ids:
                update = await handle.next()
                self._completions.append(completion_of(update))
                by_id[update.id] = encoder_output_of(update)
                if len(self._completions) % RESULTS_AT_ONCE == 0:
                    await self.context.turns.take()
            results += [by_id[id_] for id_ in handle.ids]
        return results

    def job(
        self,
        window: Window,
        num_texts: int,
        *,
        logit_positions: tuple[int, ...] = (),
        token_outputs: tuple[str, ...] = (),
        max_active_dims: int = MAX_ACTIVE_DIMS,
        attention: AttentionSelection | None = None,
    ) -> EncodingJob:
        """Makes the job that encodes one window of a request with ``num_texts`` jobs in all.

        :class:`EncodingJob` describes the other arguments.
        """
        return EncodingJob(
            token_ids=window.token_ids,
            segment_ids=window.segment_ids,
            num_attended=window.num_attended,
            logit_positions=logit_positions,
            token_outputs=token_outputs,
            max_active_dims=max_active_dims,
            attention=attention,
            is_bulk=self.is_bulk,
            deadline=self.caller.deadline,
            num_texts=num_texts,
            adapter=self.model.adapter,
        )

    async def jobs(
        self,
        tokenized: Sequence[TokenizedText],
        *,
        token_outputs: tuple[str, ...] = (),
        max_active_dims: int = MAX_ACTIVE_DIMS,
        attention: AttentionSelection | None = None,
    ) -> list[list[EncodingJob]]:
        """Makes the jobs that encode the windows of each text."""

        def build() -> list[list[EncodingJob]]:
            return [
                [
                    self.job(
                        *(window, num_jobs),
                        token_outputs=token_outputs,
                        max_active_dims=max_active_dims,
                        attention=attention,
                    )
                    for window in text.windows
                ]
                for text in tokenized
            ]

        num_jobs = sum(len(text.windows) for text in tokenized)
        return await self.context.build(_VALUES_PER_JOB * num_jobs, build, self.caller)

    async def build(self, num_values: int, function: Callable[[], T]) -> T:
        """Runs ``function``, which builds a result of ``num_values`` numbers or short texts."""
        num_jobs = len(self._completions)
        return await self.context.build(num_values + 8 * num_jobs, function, self.caller)

    async def _submit(self, jobs: Sequence[EncodingJob]) -> list[JobHandle]:
        """Submits all jobs in parts. Yields to other tasks between parts."""
        handles: list[JobHandle] = []
        if len(jobs) > HANDLES_AT_ONCE:
            await self.context.turns.take()
        try:
            for part in self.context.engine.submit_texts(self.model.key, jobs, self.caller.client):
                handles += part
                if sum(handle.num_jobs for handle in handles) < len(jobs):
                    await self.context.turns.take()
        except BaseException:
            self.context.engine.cancel(handles)
            raise
        return handles

    async def enter(self, resource: Callable[[], AbstractContextManager[None]]) -> ExitStack:
        """Enters the context that ``resource`` makes. The caller must close the returned stack.

        Bulk work waits and retries if ``resource`` raises ``OverloadedError``.
        """
        stack = ExitStack()

        async def enter() -> None:
            stack.enter_context(resource())

        await self._when_accepted(enter)
        return stack

    async def _when_accepted(self, function: Callable[[], Awaitable[T]]) -> T:
        """Awaits ``function``; bulk work waits and retries while the engine's queue is full."""
        while True:
            try:
                return await function()
            except OverloadedError as error:
                if not self.is_bulk:
                    raise
                await asyncio.sleep(error.retry_seconds)

    def finish(self) -> tuple[Usage, Timing]:
        """Returns the whole call's usage and timing, and reports them to the metrics. Call once."""
        metrics, name = self.context.metrics, self.model.manifest.name
        for done in self._completions:
            metrics.on_phases(name, done.queue_seconds, done.prefill_seconds, done.decode_seconds)
        metrics.on_tokens(name, self._num_tokens, 0)
        usage = Usage(input_tokens=self._num_tokens)
        return usage, Timing.of(self._completions, self.prepare_seconds, self.started)
