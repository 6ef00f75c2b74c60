"""The Tag call: finds entities, which are labelled spans of texts such as names and places."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from model.bundle import SpanTagging, Task
from server.bounds import (
    INPUT_BYTES,
    MAX_ENTRIES,
    MAX_ENTRY_BYTES,
    MAX_LABELS,
    MAX_NAME_BYTES,
    MAX_REPLY_NUMBERS,
    MAX_TEXTS,
    bounded,
    ruled,
    sized,
)
from server.engine.requests.update import EncoderOutput
from server.errors import InvalidArgumentError
from server.service import label_spans, validation
from server.service.caller import Caller
from server.service.context import ServiceContext
from server.service.encoder_call import EncoderCall
from server.service.encoder_options import LengthOptions, length_limit, softmax
from server.service.label_spans import check_labels
from server.service.requests import ModelRequest
from server.service.truncation import Truncation, truncation_of, usage_of
from server.service.usage import Timing, Usage
from server.text.entities import Aggregation as Aggregation  # noqa: PLC0414
from server.text.entities import Entity, LabelledToken, find_entities
from server.text.label_spans import SpanRules, find_spans, join_windows
from server.text.tokenizer import Tokenizer
from server.text.windows import LongInput, TokenizedText, best_windows

DEFAULT_IGNORED_LABELS = ("O",)
DEFAULT_MIN_SCORE = 0.5  # of entities with candidate labels, as in the package gliner


@dataclass(frozen=True, slots=True, kw_only=True)
class TagRequest(ModelRequest):
    """Texts, and the entities to return.

    Entities with ``ignored_labels`` are left out; empty means :data:`DEFAULT_IGNORED_LABELS`. So
    are entities with scores below ``min_score``, 0 … 1; ``None`` means 0, or
    :data:`DEFAULT_MIN_SCORE` with ``candidate_labels``.

    ``candidate_labels`` are the labels to find, for a model without labels of its own (GLiNER).
    ``nested`` entities may contain others; with ``multi_label``, entities with other labels may
    have the same words.
    """

    inputs: tuple[str, ...] = ruled(INPUT_BYTES, (), max_items=MAX_TEXTS)
    aggregation: Aggregation = Aggregation.SIMPLE
    ignored_labels: tuple[str, ...] = sized((), max_items=MAX_ENTRIES, max_bytes=MAX_ENTRY_BYTES)
    min_score: float | None = bounded(None, 0.0, 1.0)
    candidate_labels: tuple[str, ...] = sized((), max_items=MAX_LABELS, max_bytes=MAX_NAME_BYTES)
    nested: bool = False
    multi_label: bool = False
    length: LengthOptions = field(default_factory=LengthOptions)


@dataclass(frozen=True, slots=True)
class TextEntity:
    """A labelled span: ``text`` is the input from ``start`` to ``end``, in characters.

    ``score`` is the mean probability of its tokens or words, or the span's probability.
    """

    label: str
    score: float
    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Tagging:
    """One input's entities, in the order of the text."""

    entities: tuple[TextEntity, ...]
    usage: Usage
    truncation: Truncation


@dataclass(frozen=True, slots=True)
class TagResult:
    """The result of Tag, with outputs in the order of the inputs."""

    model: str
    outputs: tuple[Tagging, ...]
    usage: Usage
    timing: Timing

    @property
    def num_values(self) -> int:
        """Number of numbers and short texts in the reply."""
        return sum(2 + 5 * len(output.entities) for output in self.outputs)


async def tag(request: TagRequest, context: ServiceContext, caller: Caller) -> TagResult:
    """Finds the entities of each text.

    Raises:
        ServeError: an input or option is invalid, the model is unknown or does not tag, or its
            queue is full.
    """
    call = EncoderCall.open(request, Task.TAG, context, caller)
    model = call.model
    validation.check_texts(request.inputs, context.config.max_input_bytes)
    spec = model.manifest.span_tagging or None
    check_labels(request.candidate_labels, spec, model.manifest.name)
    if spec is not None:
        return await _tag_by_candidates(request, spec, call)
    for name in ("nested", "multi_label"):
        if getattr(request, name):
            raise InvalidArgumentError(name, "needs candidate_labels")
    ignored = set(request.ignored_labels or DEFAULT_IGNORED_LABELS)
    limit = length_limit(request.length, model, LongInput.WINDOWS)
    tokenized = await call.tokenize(request.inputs, limit, with_offsets=True)
    num_tokens = sum(text.num_tokens for text in tokenized)
    num_numbers = num_tokens * len(model.manifest.labels)
    validation.check_reply("inputs", num_numbers, MAX_REPLY_NUMBERS, "label scores")
    outputs = await call.run(await call.jobs(tokenized))

    def tagging(index: int) -> Tagging:
        source, text = request.inputs[index], tokenized[index]
        tokens = _labelled_tokens(model.tokenizer, source, text, outputs[index])
        entities = find_entities(tokens, model.manifest.labels, request.aggregation, ignored)
        return Tagging(
            entities=_text_entities(source, entities, request.min_score or 0.0),
            usage=usage_of(text),
            truncation=truncation_of(text),
        )

    costs = (16 * text.num_tokens for text in tokenized)
    taggings = await context.build_each(costs, tagging, caller)
    usage, timing = await call.build(0, call.finish)
    return TagResult(model.manifest.name, tuple(taggings), usage, timing)


async def _tag_by_candidates(
    request: TagRequest, spec: SpanTagging, call: EncoderCall
) -> TagResult:
    """Finds the entities of the request's labels; see :mod:`server.service.label_spans`."""
    if request.aggregation != Aggregation.SIMPLE:
        raise InvalidArgumentError("aggregation", "cannot be combined with candidate_labels")
    inputs, labels = request.inputs, tuple(dict.fromkeys(request.candidate_labels))
    ignored = set(request.ignored_labels or DEFAULT_IGNORED_LABELS)
    min_score = DEFAULT_MIN_SCORE if request.min_score is None else request.min_score
    rules = SpanRules(min_score, request.nested, request.multi_label)
    texts = await label_spans.tokenize(inputs, labels, spec, request.length, call)
    outputs = await call.run(await label_spans.jobs(texts, call))

    def tagging(index: int) -> Tagging:
        text, offsets = texts[index], texts[index].tokenized.offsets
        logits = join_windows([output.vector for output in outputs[index]], text.words)
        begin = text.words[0].start  # not 0 if the left of the text was truncated
        entities = [
            Entity(
                labels[span.label],
                span.score,
                offsets[begin + span.first][0],
                offsets[begin + span.last][1],
            )
            for span in find_spans(logits, rules)
            if labels[span.label] not in ignored
        ]
        return Tagging(
            entities=_text_entities(inputs[index], entities, min_score),
            usage=usage_of(text.tokenized),
            truncation=truncation_of(text.tokenized),
        )

    num_scores = spec.max_width * len(labels)
    costs = (num_scores * sum(map(len, text.words)) // 4 for text in texts)
    taggings = await call.context.build_each(costs, tagging, call.caller)
    usage, timing = await call.build(0, call.finish)
    return TagResult(call.model.manifest.name, tuple(taggings), usage, timing)


def _text_entities(
    source: str, entities: Collection[Entity], min_score: float
) -> tuple[TextEntity, ...]:
    return tuple(
        TextEntity(
            label=entity.label,
            score=entity.score,
            start=entity.start,
            end=entity.end,
            text=source[entity.start : entity.end],
        )
        for entity in entities
        if entity.score >= min_score
    )


def _labelled_tokens(
    tokenizer: Tokenizer, source: str, text: TokenizedText, outputs: Sequence[EncoderOutput]
) -> list[LabelledToken]:
    """The label probabilities of each token, from the window that gives it the most context."""
    starts = tokenizer.word_starts(source, text)
    tokens = []
    first_token = text.windows[0].first_token  # not 0 if the left of the text was truncated
    for token, (window, index) in enumerate(best_windows(text), first_token):
        start, end = _without_spaces(source, *text.offsets[token])
        scores = softmax(outputs[window].vector[index])
        tokens.append(LabelledToken(scores, start, end, starts[token]))
    return tokens


def _without_spaces(text: str, start: int, end: int) -> tuple[int, int]:
    """The span without the leading and trailing spaces that some tokenizers include."""
    covered = text[start:end]
    if not covered.strip():
        return start, end
    return end - len(covered.lstrip()), start + len(covered.rstrip())
