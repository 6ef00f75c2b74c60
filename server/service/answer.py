"""The Answer call: extractive question answering, which finds the answer as a context span."""

from dataclasses import dataclass, field

from model.bundle import Task
from server.bounds import INPUT_BYTES, MAX_REPLY_VALUES, MAX_TEXTS, bounded, ruled, sized
from server.service import validation
from server.service.caller import Caller
from server.service.context import ServiceContext
from server.service.encoder_call import EncoderCall
from server.service.encoder_options import LengthOptions, check_integer, length_limit
from server.service.requests import ModelRequest
from server.service.truncation import Truncation, truncation_of, usage_of
from server.service.usage import Timing, Usage
from server.text.answers import find_answers
from server.text.windows import LongInput

DEFAULT_MAX_ANSWER_TOKENS = 15
MAX_TOP_K = 128


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and the ``context`` that contains the answer."""

    question: str = ruled(INPUT_BYTES)
    context: str = ruled(INPUT_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRequest(ModelRequest):
    """Questions with their contexts, and the answers to return.

    ``top_k`` is the maximum number of answers per question. ``max_answer_tokens`` is the maximum
    length of an answer; ``None`` means :data:`DEFAULT_MAX_ANSWER_TOKENS`. With ``allow_no_answer``,
    the answers may include an empty span.
    """

    questions: tuple[Question, ...] = sized((), max_items=MAX_TEXTS)
    top_k: int = bounded(1, 1, MAX_TOP_K)
    max_answer_tokens: int | None = ruled("1 … the model's max_length", None)
    allow_no_answer: bool = False
    length: LengthOptions = field(default_factory=LengthOptions)


@dataclass(frozen=True, slots=True)
class AnswerSpan:
    """An answer: the context from ``start`` to ``end``, in characters; empty for no answer.

    ``score`` is the probability of the start times the probability of the end.
    """

    text: str
    score: float
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Answers:
    """One question's answers, best first."""

    spans: tuple[AnswerSpan, ...]
    usage: Usage
    truncation: Truncation


@dataclass(frozen=True, slots=True)
class AnswerResult:
    """The result of Answer, with outputs in the order of the questions."""

    model: str
    outputs: tuple[Answers, ...]
    usage: Usage
    timing: Timing

    @property
    def num_values(self) -> int:
        """Number of numbers and short texts in the reply."""
        return sum(2 + 4 * len(output.spans) for output in self.outputs)


async def answer(request: AnswerRequest, context: ServiceContext, caller: Caller) -> AnswerResult:
    """Answers each question from its context.

    Raises:
        ServeError: an input or option is invalid, the model is unknown or does not answer
            questions, or its queue is full.
    """
    call = EncoderCall.open(request, Task.ANSWER, context, caller)
    model, max_bytes = call.model, context.config.max_input_bytes
    questions = [question.question for question in request.questions]
    passages = [question.context for question in request.questions]
    validation.check_texts(questions, max_bytes, "questions", ".question")
    validation.check_texts(passages, max_bytes, "questions", ".context")
    check_integer("top_k", request.top_k, high=MAX_TOP_K)
    check_integer("max_answer_tokens", request.max_answer_tokens, high=model.max_length)
    limit = length_limit(request.length, model, LongInput.WINDOWS)
    tokenized = await call.tokenize(
        questions, limit, pairs=passages, with_offsets=True, path="questions[{}]"
    )
    longest = request.max_answer_tokens or DEFAULT_MAX_ANSWER_TOKENS
    # Each window yields up to top_k candidate spans, so check their total.
    num_windows = sum(len(text.windows) for text in tokenized)
    validation.check_reply("top_k", num_windows * request.top_k, MAX_REPLY_VALUES, "spans")
    num_tokens = len(questions) * request.top_k * longest
    validation.check_reply("max_answer_tokens", num_tokens, MAX_REPLY_VALUES, "tokens")
    outputs = await call.run(await call.jobs(tokenized))

    def answers_to(index: int) -> Answers:
        text, passage = tokenized[index], passages[index]
        found = find_answers(
            text,
            [output.vector for output in outputs[index]],
            top_k=request.top_k,
            max_answer_tokens=longest,
            allow_no_answer=request.allow_no_answer,
        )
        spans = tuple(
            AnswerSpan(passage[span.start : span.end], span.score, span.start, span.end)
            for span in found
        )
        return Answers(spans, usage_of(text), truncation_of(text))

    window_cost = 512 + request.top_k * (16 + longest // 2)
    costs = (window_cost * len(text.windows) for text in tokenized)
    answers = await context.build_each(costs, answers_to, caller)
    usage, timing = await call.build(0, call.finish)
    return AnswerResult(model.manifest.name, tuple(answers), usage, timing)
