"""The Score call: computes log-probabilities of given texts, by prefill without generation."""

import time
from dataclasses import dataclass, field

from model.bundle import Task
from model.config import Kind
from server.bounds import (
    MAX_NAME_BYTES,
    MAX_REPLY_VALUES,
    MAX_TEXTS,
    bounded,
    ruled,
    sized,
)
from server.engine.decoding.options import LogprobOptions
from server.engine.decoding.sampling import TokenLogprob
from server.engine.requests.job import GenerationJob
from server.engine.requests.job_handle import JobHandle
from server.engine.requests.update import Completion
from server.errors import InvalidArgumentError
from server.models.registry import Model
from server.service import validation
from server.service.caller import Caller
from server.service.context import ServiceContext
from server.service.generation_options import PRIORITIES, ResponseOptions
from server.service.generation_request import ScoredToken
from server.service.languages import target_start, with_source_language
from server.service.output_text import scored_tokens
from server.service.requests import ModelRequest
from server.service.threads import slices_of
from server.service.usage import Timing, Usage, completion_of
from server.text.windows import TooLongError

SHARED_BYTES = "512 KiB, context and target together"
_TASKS = (Task.TRANSLATE, Task.GENERATE)


@dataclass(frozen=True, slots=True)
class ScoreInput:
    """A prompt or a translation's source as ``context``, and the ``target`` text to score."""

    context: str = ruled(SHARED_BYTES)
    target: str = ruled(SHARED_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest(ModelRequest):
    """A request of Score. Of ``response``, only ``logprobs`` and ``top_logprobs`` apply."""

    inputs: tuple[ScoreInput, ...] = sized((), max_items=MAX_TEXTS)
    response: ResponseOptions = field(default_factory=ResponseOptions)
    priority: int = bounded(0, PRIORITIES.low, PRIORITIES.high)
    source_language: str = sized("", max_bytes=MAX_NAME_BYTES)
    target_language: str = sized("", max_bytes=MAX_NAME_BYTES)


@dataclass(frozen=True, slots=True)
class ScoredOutput:
    """One input's ``score``: the sum of the log-probabilities of ``num_tokens`` target tokens."""

    score: float
    num_tokens: int
    logprobs: tuple[ScoredToken, ...]
    usage: Usage


@dataclass(frozen=True, slots=True)
class ScoreResult:
    """The result of Score, with outputs in the order of the inputs."""

    model: str
    outputs: tuple[ScoredOutput, ...]
    usage: Usage
    timing: Timing

    @property
    def num_values(self) -> int:
        """Number of numbers and short texts in the reply."""
        return sum(
            4 + 4 * sum(1 + len(token.top) for token in output.logprobs) for output in self.outputs
        )


@dataclass(frozen=True, slots=True)
class _Tokens:
    """One tokenized input. The last ``num_targets`` tokens of ``prompt`` are the target."""

    prompt: tuple[int, ...]
    num_targets: int
    source: tuple[int, ...] = ()


async def score(request: ScoreRequest, context: ServiceContext, caller: Caller) -> ScoreResult:
    """Scores each target.

    Raises:
        ServeError: an input or option is invalid, the model is unknown or an encoder, or its queue
            is full.
    """
    started = time.monotonic()
    model = context.model_of(request)
    validation.check_text_source(model)
    if not any(task in model.manifest.tasks for task in _TASKS):
        raise InvalidArgumentError(
            "model",
            f"{request.model!r} is an encoder{validation.of_inputs(model)}, without Score",
        )
    _check_inputs(request, model, context.config.max_input_bytes)
    context.engine.check(model.key, len(request.inputs), caller.client)

    def tokenize_some(start: int, stop: int) -> list[_Tokens]:
        return [_tokenized(request, index, model) for index in range(start, stop)]

    costs = (len(pair.context) + len(pair.target) for pair in request.inputs)
    parts = await context.run_slices(slices_of(costs, tokenize_some), caller)
    rows = [row for part in parts for row in part]
    # Log-probabilities of the context are computed too.
    num_values = sum(len(row.prompt) for row in rows) * (1 + request.response.top_logprobs)
    validation.check_reply("top_logprobs", num_values, MAX_REPLY_VALUES, "log-probabilities")
    jobs = [
        GenerationJob(
            prompt=row.prompt,
            max_new_tokens=0,
            source=row.source,
            logprob_options=LogprobOptions(prompt_logprobs=request.response.top_logprobs),
            priority=request.priority,
            deadline=caller.deadline,
            cache_scope=context.cache_scope(caller),
            adapter=model.adapter,
            client=caller.client,
        )
        for row in rows
    ]
    tokenize_seconds = time.monotonic() - started
    handles = context.engine.submit(model.key, jobs, caller.client)
    try:
        results = [await _result(handle) for handle in handles]
    finally:
        context.engine.cancel(handles)

    def build() -> list[ScoredOutput]:
        return [
            _output(row, values, completion, model, request, context)
            for row, (values, completion) in zip(rows, results, strict=True)
        ]

    outputs = await context.build(num_values, build, caller)
    completions = [completion for _, completion in results]
    return ScoreResult(
        model=model.manifest.name,
        outputs=tuple(outputs),
        usage=Usage(input_tokens=sum(output.usage.input_tokens for output in outputs)),
        timing=Timing.of(completions, tokenize_seconds, started),
    )


def _output(
    row: _Tokens,
    prompt_logprobs: tuple[TokenLogprob, ...],
    completion: Completion,
    model: Model,
    request: ScoreRequest,
    context: ServiceContext,
) -> ScoredOutput:
    name = model.manifest.name
    context.metrics.on_phases(
        name, completion.queue_seconds, completion.prefill_seconds, completion.decode_seconds
    )
    usage = Usage(input_tokens=len(row.source) + len(row.prompt))
    context.metrics.on_tokens(name, usage.input_tokens, 0)
    values = prompt_logprobs[len(prompt_logprobs) - row.num_targets :]
    tokens = row.prompt[len(row.prompt) - row.num_targets :]
    return ScoredOutput(
        score=sum(value.logprob for value in values),
        num_tokens=row.num_targets,
        logprobs=scored_tokens(model, tokens, values) if request.response.logprobs else (),
        usage=usage,
    )


def _check_inputs(request: ScoreRequest, model: Model, max_bytes: int) -> None:
    """Rejects empty or too long inputs before tokenization."""
    if not request.inputs:
        raise InvalidArgumentError("inputs", "at least one is needed")
    for index, pair in enumerate(request.inputs):
        path = f"inputs[{index}]"
        if not pair.target:
            raise InvalidArgumentError(f"{path}.target", "is empty")
        if len(pair.context.encode()) + len(pair.target.encode()) > max_bytes:
            raise InvalidArgumentError(path, f"has more than {max_bytes} bytes")
    if model.manifest.kind == Kind.DECODER:
        _check_no_languages(request)


def _tokenized(request: ScoreRequest, index: int, model: Model) -> _Tokens:
    """Tokenizes input ``index``. Raises ``InvalidArgumentError`` if it is empty or too long."""
    pair, path = request.inputs[index], f"inputs[{index}]"
    try:
        if model.manifest.kind == Kind.DECODER:
            row = _continuation(model, pair)
        else:
            row = _translation(model, pair, path, request)
    except TooLongError as error:
        raise InvalidArgumentError(path, str(error)) from error
    limits = ((row.prompt, model.max_length), (row.source, model.max_source_length))
    for tokens, longest in limits:
        if len(tokens) > longest:
            raise InvalidArgumentError(path, f"has more than {longest} tokens")
    if row.num_targets < 1:
        raise InvalidArgumentError(f"{path}.target", "has no token to score")
    return row


def _check_no_languages(request: ScoreRequest) -> None:
    for name in ("source_language", "target_language"):
        if getattr(request, name):
            raise InvalidArgumentError(name, "applies to encoder-decoders only")


def _continuation(model: Model, pair: ScoreInput) -> _Tokens:
    """Tokenizes context and target together, as one text."""
    tokens, num_before = model.tokenizer.encode_after(pair.context, pair.target, model.max_length)
    return _Tokens(tokens, len(tokens) - max(num_before, 1))


def _translation(model: Model, pair: ScoreInput, path: str, request: ScoreRequest) -> _Tokens:
    if not pair.context.strip():
        raise InvalidArgumentError(f"{path}.context", "is empty: an encoder-decoder needs a source")
    encode = model.tokenizer.encode
    (source,) = encode([pair.context], max_tokens=model.max_source_length)
    (target,) = encode([pair.target], special_tokens=False, max_tokens=model.max_length)
    scored = (*target, *model.manifest.special_tokens.eos[:1])
    start = target_start(model, request.target_language)
    source = with_source_language(model, request.source_language, source)
    return _Tokens((*start, *scored), len(scored), source)


async def _result(handle: JobHandle) -> tuple[tuple[TokenLogprob, ...], Completion]:
    update = await handle.next()
    return update.prompt.logprobs, completion_of(update)
