"""What one request of each task is, and what a client sees of its answer."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum

from client import encoder_types, types
from client.aio import AsyncClient
from client.errors import TriuneError
from loadtest.driver import Clock, Response, Send
from loadtest.prompts import LengthRange, Prompts
from loadtest.statistics import TokenArrival

UNFINISHED = "UNFINISHED"
"""The status of a stream that ended well for gRPC, but without its last piece."""


class Task(StrEnum):
    GENERATE = "generate"
    TRANSLATE = "translate"
    EMBED = "embed"
    CLASSIFY = "classify"
    TAG = "tag"
    FILL_MASK = "fill-mask"
    ANSWER = "answer"
    RERANK = "rerank"
    SCORE = "score"

    @property
    def needs(self) -> tuple[str, ...]:
        """What a model must be able to do, as ``GetModel`` says it: one of these."""
        if self is Task.SCORE:
            return ("generate", "translate")
        return (self.value.replace("-", "_"),)


@dataclass(frozen=True, kw_only=True, slots=True)
class Defaults:
    """What a task's requests are like, unless the caller says otherwise."""

    lengths: LengthRange
    """In tokens."""
    max_new_tokens: int | None
    ignore_eos: bool


def _encoder_defaults(shortest: int, longest: int) -> Defaults:
    """Of a task that generates nothing."""
    return Defaults(lengths=LengthRange(shortest, longest), max_new_tokens=None, ignore_eos=False)


# A trained decoder may end at once on a prompt that was cut: past the end, every request
# costs the same. A translation ends when its source is translated.
DEFAULTS = {
    Task.GENERATE: Defaults(lengths=LengthRange(8, 128), max_new_tokens=64, ignore_eos=True),
    Task.TRANSLATE: Defaults(lengths=LengthRange(5, 80), max_new_tokens=128, ignore_eos=False),
    Task.EMBED: _encoder_defaults(8, 128),
    Task.CLASSIFY: _encoder_defaults(8, 128),
    Task.TAG: _encoder_defaults(8, 128),
    Task.FILL_MASK: _encoder_defaults(8, 64),
    Task.ANSWER: _encoder_defaults(64, 256),
    Task.RERANK: _encoder_defaults(8, 128),
    Task.SCORE: _encoder_defaults(8, 64),
}
NUM_DOCUMENTS = 8
"""Of a request to rerank."""
_QUESTION_WORDS = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestSpec:
    """One text a request, all with the same options."""

    task: Task
    model: str
    prompts: Prompts
    max_new_tokens: int | None
    ignore_eos: bool
    mask_token: str = ""
    """Of a model that fills masks."""


def sender(client: AsyncClient, spec: RequestSpec, clock: Clock) -> Send:
    """Sends the workload's requests with ``client``; times are of ``clock``."""
    options = types.GenerationOptions(
        max_new_tokens=spec.max_new_tokens,
        ignore_eos=spec.ignore_eos,
        token_ids=True,
    )

    async def generate(text: str) -> Response:
        return await follow(client.generate_stream(spec.model, text, **options), clock)

    async def translate(text: str) -> Response:
        return await follow(client.translate_stream(spec.model, text, **options), clock)

    calls: dict[Task, Callable[[str], Awaitable[Response]]] = {
        Task.GENERATE: generate,
        Task.TRANSLATE: translate,
    }
    call = calls.get(spec.task)

    async def ask(number: int) -> Response:
        if call is not None:
            return await call(spec.prompts.text(number))
        return Response(input_tokens=(await _call_unary(client, spec, number)).input_tokens)

    async def send(number: int) -> Response:
        try:
            return await ask(number)
        except TriuneError as error:
            return Response(status=error.code.name, retry_delay_seconds=error.retry_delay_seconds)

    return send


async def _call_unary(client: AsyncClient, spec: RequestSpec, number: int) -> types.Usage:
    """A request that is answered at once. Where it takes several texts, they are those of other
    numbers, which no request has as its own.
    """
    task, model, prompts = spec.task, spec.model, spec.prompts
    text = prompts.text(number)
    result: types.Result
    if task is Task.EMBED:
        result = await client.embed(model, text)
    elif task is Task.CLASSIFY:
        result = await client.classify(model, text)
    elif task is Task.TAG:
        result = await client.tag(model, text)
    elif task is Task.FILL_MASK:
        result = await client.fill_mask(model, masked(text, spec.mask_token))
    elif task is Task.ANSWER:
        question = " ".join(prompts.text(number + _OTHER_PROMPTS).split()[:_QUESTION_WORDS])
        result = await client.answer(model, [encoder_types.Question(question, text)])
    elif task is Task.RERANK:
        first = _OTHER_PROMPTS + number * NUM_DOCUMENTS
        documents = [prompts.text(first + place) for place in range(NUM_DOCUMENTS)]
        result = await client.rerank(model, text, documents)
    else:
        result = await client.score(model, [(text, prompts.text(number + _OTHER_PROMPTS))])
    return result.usage


_OTHER_PROMPTS = 1 << 40


def masked(text: str, mask: str) -> str:
    """``text`` with ``mask`` in place of its middle word."""
    words = text.split()
    words[len(words) // 2] = mask
    return " ".join(words)


async def follow(pieces: AsyncGenerator[types.Piece, None], clock: Clock) -> Response:
    """Follows a stream. Its last piece tells how many tokens there were in all: one that
    has no text, as the end of sequence, may have no id.
    """
    arrivals: list[TokenArrival] = []
    num_tokens = 0
    usage = None
    async for piece in pieces:
        usage = piece.usage
        total = num_tokens + len(piece.token_ids) if usage is None else usage.output_tokens
        if total > num_tokens:
            arrivals.append(TokenArrival(clock.now(), total - num_tokens))
            num_tokens = total
    if usage is None:
        return Response(status=UNFINISHED)
    return Response(
        arrivals=tuple(arrivals),
        input_tokens=usage.input_tokens,
        reused_tokens=usage.reused_tokens,
    )
