"""Answer: the parts of a text that answer a question (extractive question answering)."""

from dataclasses import dataclass, field

from model.bundle import Task
from server.service import validation
from server.service.caller import Caller
from server.service.context import ServiceContext
from server.service.encoder_call import EncoderCall, Truncation, truncation_of, usage_of
from server.service.encoder_options import LengthOptions, check_integer, length_limit
from server.service.requests import ModelRequest
from server.service.usage import Timing, Usage
from server.text.answers import Span, find_answers
from server.text.windows import LongInput

DEFAULT_MAX_ANSWER_TOKENS = 15
MAX_TOP_K = 1024


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and the ``context`` that contains the answer."""

    question: str
    context: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRequest(ModelRequest):
    """Questions, and how many answers are wanted.

    ``top_k``: the most answers per question. ``max_answer_tokens``: the longest answer; ``None``:
    :data:`DEFAULT_MAX_ANSWER_TOKENS`. ``allow_no_answer``: an empty span may be among the answers.
    """

    questions: tuple[Question, ...] = ()
    top_k: int = 1
    max_answer_tokens: int | None = None
    allow_no_answer: bool = False
    length: LengthOptions = field(default_factory=LengthOptions)


@dataclass(frozen=True, slots=True)
class AnswerSpan:
    """``text`` is the context from ``start`` to ``end``, in characters; empty for no answer.

    ``score``: the probability of its start times that of its end.
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
    """The outputs in the order of the questions."""

    model: str
    outputs: tuple[Answers, ...]
    usage: Usage
    timing: Timing


async def answer(request: AnswerRequest, context: ServiceContext, caller: Caller) -> AnswerResult:
    """Answers each question from its context.

    Raises:
        ServeError: an input or option is bad, or the model is unknown, does not answer questions,
            or is full.
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
    outputs = await call.run(call.jobs(tokenized))

    def find_all() -> list[list[Span]]:
        return [
            find_answers(
                text,
                [output.vector for output in windows],
                top_k=request.top_k,
                max_answer_tokens=request.max_answer_tokens or DEFAULT_MAX_ANSWER_TOKENS,
                allow_no_answer=request.allow_no_answer,
            )
            for text, windows in zip(tokenized, outputs, strict=True)
        ]

    found = await context.in_thread(find_all)
    usage, timing = call.finish()
    return AnswerResult(
        model=model.manifest.name,
        outputs=tuple(
            Answers(
                spans=tuple(
                    AnswerSpan(passage[span.start : span.end], span.score, span.start, span.end)
                    for span in spans
                ),
                usage=usage_of(text),
                truncation=truncation_of(text),
            )
            for passage, spans, text in zip(passages, found, tokenized, strict=True)
        ),
        usage=usage,
        timing=timing,
    )
