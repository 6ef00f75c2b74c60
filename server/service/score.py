"""Score: how likely given texts are. The prompt is read, and nothing is generated."""

import time
from dataclasses import dataclass

from model.bundle import Task
from model.config import Kind
from protos.triune.v1 import common_pb2
from protos.triune.v1 import inference_pb2 as pb
from server.engine.decoding.options import LogprobOptions
from server.engine.decoding.sampling import TokenLogprob
from server.engine.requests.job_handle import JobHandle
from server.engine.requests.sequence import Completion, GenerationJob
from server.errors import InvalidArgumentError
from server.frontends.grpc.messages import token_logprobs
from server.models.registry import Model
from server.service import options as checked
from server.service.accounting import end_of, timing
from server.service.caller import Caller
from server.service.context import Services
from server.service.languages import target_start, with_source_language

_TASKS = (Task.TRANSLATE, Task.GENERATE)


@dataclass(frozen=True, slots=True)
class _Scored:
    """The last ``num_targets`` of the prompt's tokens are the target's."""

    prompt: tuple[int, ...]
    num_targets: int
    source: tuple[int, ...] = ()


async def score(request: pb.ScoreRequest, services: Services, caller: Caller) -> pb.ScoreResponse:
    """Raises ``ServeError``."""
    started = time.monotonic()
    model = services.registry.get(request.model, request.version)
    task = next((task for task in _TASKS if task in model.manifest.tasks), None)
    if task is None:
        raise InvalidArgumentError("model", f"{request.model!r} is an encoder: it has no Score")
    rows = await services.in_thread(lambda: _rows(request, model, services), caller)
    top = int(checked.numbers("response", request.response).get("top_logprobs", 0))
    jobs = [
        GenerationJob(
            prompt=row.prompt,
            max_new_tokens=0,
            source=row.source,
            logprob_options=LogprobOptions(prompt_logprobs=top),
            priority=checked.priority(request.priority),
            deadline=caller.deadline,
        )
        for row in rows
    ]
    tokenized = time.monotonic()
    tickets = services.engine.submit(model.key, jobs, caller.client)
    try:
        results = [await _result(ticket) for ticket in tickets]
    finally:
        services.engine.cancel(tickets)
    name, outputs = model.manifest.name, []
    for row, (told, end) in zip(rows, results, strict=True):
        services.metrics.on_phases(name, end.queue_seconds, end.prefill_seconds, end.decode_seconds)
        usage = common_pb2.Usage(input_tokens=len(row.source) + len(row.prompt))
        services.metrics.on_tokens(name, usage.input_tokens, 0)
        values = told[len(told) - row.num_targets :]
        tokens = row.prompt[len(row.prompt) - row.num_targets :]
        outputs.append(
            pb.ScoredOutput(
                score=sum(value.logprob for value in values),
                num_tokens=row.num_targets,
                logprobs=token_logprobs(model, tokens, values) if request.response.logprobs else (),
                usage=usage,
            )
        )
    return pb.ScoreResponse(
        model=name,
        outputs=outputs,
        usage=common_pb2.Usage(input_tokens=sum(row.usage.input_tokens for row in outputs)),
        timing=timing([end for _, end in results], tokenized - started, started),
    )


def _rows(request: pb.ScoreRequest, model: Model, services: Services) -> list[_Scored]:
    """Every input as token ids. Raises ``InvalidArgumentError``."""
    if not request.inputs:
        raise InvalidArgumentError("inputs", "at least one is needed")
    languages = request.source_language, request.target_language
    rows = []
    for index, pair in enumerate(request.inputs):
        field, max_bytes = f"inputs[{index}]", services.config.max_input_bytes
        if not pair.target:
            raise InvalidArgumentError(f"{field}.target", "is empty")
        if len(pair.context.encode()) + len(pair.target.encode()) > max_bytes:
            raise InvalidArgumentError(field, f"has more than {max_bytes} bytes")
        if model.manifest.kind == Kind.DECODER:
            _check_no_languages(request)
            row = _continued(model, pair)
        else:
            row = _translated(model, pair, field, *languages)
        if len(row.prompt) > model.max_length or len(row.source) > model.max_length:
            raise InvalidArgumentError(field, f"has more than {model.max_length} tokens")
        if row.num_targets < 1:
            raise InvalidArgumentError(f"{field}.target", "has no token that could be scored")
        rows.append(row)
    return rows


def _check_no_languages(request: pb.ScoreRequest) -> None:
    for field in ("source_language", "target_language"):
        if getattr(request, field):
            raise InvalidArgumentError(field, "is of encoder-decoders")


def _continued(model: Model, pair: pb.ScoreInput) -> _Scored:
    """Context and target in one piece, so that tokens are those of the whole text."""
    tokens, num_before = model.tokenizer.encode_after(pair.context, pair.target)
    return _Scored(tokens, len(tokens) - max(num_before, 1))


def _translated(
    model: Model, pair: pb.ScoreInput, field: str, source_language: str, target_language: str
) -> _Scored:
    if not pair.context.strip():
        raise InvalidArgumentError(f"{field}.context", "is empty: it is the source")
    (source,) = model.tokenizer.encode([pair.context])
    (target,) = model.tokenizer.encode([pair.target], special_tokens=False)
    scored = (*target, *model.manifest.special_tokens.eos[:1])
    start = target_start(model, target_language)
    source = with_source_language(model, source_language, source)
    return _Scored((*start, *scored), len(scored), source)


async def _result(ticket: JobHandle) -> tuple[tuple[TokenLogprob, ...], Completion]:
    progress = await ticket.next()
    return progress.prompt_logprobs, end_of(progress)
