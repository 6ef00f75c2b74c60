"""Builds and sends the requests of each task, and reads what a client measures of responses."""

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
"""Status of a stream that ended with OK, but without a last piece."""


class Task(StrEnum):
    GENERATE = "generate"
    TRANSLATE = "translate"
    EMBED = "embed"
    CLASSIFY = "classify"
    TAG = "tag"
    FILL_MASK = "fill-mask"
    ANSWER = "answer"
    RERANK = "rerank"
    CORRECT = "correct"
    SCORE = "score"

    @property
    def model_tasks(self) -> tuple[str, ...]:
        """Tasks of ``Model.tasks``, one of which a model must support."""
        if self is Task.SCORE:
            return ("generate", "translate")
        return (self.value.replace("-", "_"),)

    @property
    def texts_per_request(self) -> int:
        """Texts that a request has results for: the documents of a rerank request."""
        return NUM_DOCUMENTS if self is Task.RERANK else 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Defaults:
    """Default options of a task's requests."""

    lengths: LengthRange
    """Prompt lengths in tokens."""
    max_new_tokens: int | None
    ignore_eos: bool


def _encoder_defaults(shortest: int, longest: int) -> Defaults:
    """Defaults of a task that generates nothing."""
    return Defaults(lengths=LengthRange(shortest, longest), max_new_tokens=None, ignore_eos=False)


# A trained decoder may stop at once after a prompt that was cut. Ignoring end-of-sequence makes
# requests comparable. A translation ends when its source is translated.
DEFAULTS = {
    Task.GENERATE: Defaults(lengths=LengthRange(8, 128), max_new_tokens=64, ignore_eos=True),
    Task.TRANSLATE: Defaults(lengths=LengthRange(5, 80), max_new_tokens=128, ignore_eos=False),
    Task.EMBED: _encoder_defaults(8, 128),
    Task.CLASSIFY: _encoder_defaults(8, 128),
    Task.TAG: _encoder_defaults(8, 128),
    Task.FILL_MASK: _encoder_defaults(8, 64),
    Task.ANSWER: _encoder_defaults(64, 256),
    Task.CORRECT: _encoder_defaults(8, 128),
    Task.RERANK: _encoder_defaults(8, 128),
    Task.SCORE: _encoder_defaults(8, 64),
}
QUERY_LENGTHS = LengthRange(4, 16)
"""Prompt lengths of embed for queries, which models with a vector for each token limit."""
NUM_DOCUMENTS = 8
"""Documents of a rerank request."""
_QUESTION_WORDS = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestSpec:
    """One text per request, all with the same options."""

    task: Task
    model: str
    prompts: Prompts
    max_new_tokens: int | None
    ignore_eos: bool
    mask_token: str = ""
    """Only for fill-mask."""
    input_type: encoder_types.InputType | None = None
    """Only for embed."""


def sender(client: AsyncClient, spec: RequestSpec, clock: Clock) -> Send:
    """Returns a function that sends the requests of ``spec``; times are those of ``clock``."""
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

    async def call_task(number: int) -> Response:
        if call is not None:
            return await call(spec.prompts.text(number))
        return Response(input_tokens=(await _call_unary(client, spec, number)).input_tokens)

    async def send(number: int) -> Response:
        try:
            return await call_task(number)
        except TriuneError as error:
            return Response(status=error.code.name, retry_delay_seconds=error.retry_delay_seconds)

    return send


async def _call_unary(client: AsyncClient, spec: RequestSpec, number: int) -> types.Usage:
    """Sends a unary request and returns its usage.

    Further texts of a request have numbers from ``_OTHER_PROMPTS`` on, which are no requests.
    """
    task, model, prompts = spec.task, spec.model, spec.prompts
    text = prompts.text(number)
    result: types.Result
    if task is Task.EMBED:
        result = await client.embed(model, text, input_type=spec.input_type)
    elif task is Task.CLASSIFY:
        result = await client.classify(model, text)
    elif task is Task.TAG:
        result = await client.tag(model, text)
    elif task is Task.CORRECT:
        result = await client.correct(model, text)
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
    """Reads a stream to its end and records when tokens arrive.

    The last piece has the total number of tokens: tokens without text, such as end-of-sequence,
    may have no id in any piece.
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
