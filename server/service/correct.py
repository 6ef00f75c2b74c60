"""The Correct call: edits the words of texts in rounds, until the model changes nothing."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

from model.bundle import EditKind, EditVocabulary, Task
from server.bounds import INPUT_BYTES, MAX_REPLY_NUMBERS, MAX_TEXTS, bounded, ruled
from server.engine.requests.update import EncoderOutput
from server.errors import InternalError
from server.service import validation
from server.service.caller import Caller
from server.service.context import ServiceContext
from server.service.encoder_call import EncoderCall
from server.service.encoder_options import LengthOptions, length_limit, softmax
from server.service.requests import ModelRequest
from server.service.truncation import Truncation, truncation_of, usage_of
from server.service.usage import Timing, Usage
from server.text.edits import Revision, TextEdit, effective, text_edit, words_of
from server.text.windows import LengthLimit, LongInput, TokenizedText, best_windows

MAX_ITERATIONS = 10
DEFAULT_ITERATIONS = 5
# Maximum growth of a text relative to its input; a model may append for ever.
MAX_GROWTH = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectRequest(ModelRequest):
    """Texts, and limits of their edits.

    ``max_iterations`` is the maximum number of rounds; each edits the text of the previous one.
    ``min_score`` is the minimum probability of an edit; ``None`` means the model's own.
    """

    inputs: tuple[str, ...] = ruled(INPUT_BYTES, (), max_items=MAX_TEXTS)
    max_iterations: int = bounded(DEFAULT_ITERATIONS, 1, MAX_ITERATIONS)
    min_score: float | None = bounded(None, 0.0, 1.0)
    length: LengthOptions = field(default_factory=LengthOptions)


@dataclass(frozen=True, slots=True)
class AppliedEdit:
    """``original``, the input from ``start`` to ``end`` in characters, became ``replacement``.

    ``score`` is the lowest probability among the model's edits that it combines.
    """

    start: int
    end: int
    original: str
    replacement: str
    score: float


@dataclass(frozen=True, slots=True)
class Correction:
    """The corrected ``text``, and the edits that lead to it, in the order of the input.

    ``iterations`` is the number of passes of the model over the text. ``is_final`` means that
    another pass would change nothing.
    """

    text: str
    edits: tuple[AppliedEdit, ...]
    iterations: int
    is_final: bool
    usage: Usage
    truncation: Truncation


@dataclass(frozen=True, slots=True)
class CorrectResult:
    """The result of Correct, with outputs in the order of the inputs."""

    model: str
    outputs: tuple[Correction, ...]
    usage: Usage
    timing: Timing

    @property
    def num_values(self) -> int:
        """Number of numbers and texts in the reply."""
        return sum(5 + 5 * len(output.edits) for output in self.outputs)


@dataclass(slots=True)
class _Draft:
    """The state of one input between rounds. ``seen`` holds the texts that the model has read."""

    revision: Revision
    usages: list[Usage] = field(default_factory=list)
    truncation: Truncation = field(default_factory=lambda: Truncation(0, 1))
    seen: set[str] = field(default_factory=set)
    is_final: bool = False
    is_stuck: bool = False

    @property
    def is_open(self) -> bool:
        return not (self.is_final or self.is_stuck)


async def correct(
    request: CorrectRequest, context: ServiceContext, caller: Caller
) -> CorrectResult:
    """Corrects each text.

    Raises:
        ServeError: an input or option is invalid, the model is unknown or does not correct, or its
            queue is full.
    """
    call = EncoderCall.open(request, Task.CORRECT, context, caller)
    vocabulary = call.model.manifest.edits
    if vocabulary is None:  # the registry checks manifests
        raise InternalError
    validation.check_texts(request.inputs, context.config.max_input_bytes)
    limit = length_limit(request.length, call.model, LongInput.WINDOWS)
    min_score = vocabulary.min_score
    if request.min_score is not None:
        min_score = request.min_score
    drafts = [_Draft(Revision(text)) for text in request.inputs]
    for number in range(request.max_iterations):
        drafts_left = [draft for draft in drafts if draft.is_open]
        if not drafts_left:
            break
        path = "inputs" if number else "inputs[{}]"
        await _round(call, drafts_left, limit, path, vocabulary, min_score)
        # A corrected text may be longer than the input.
        limit = dataclasses.replace(limit, long_input=_later(limit.long_input))
    num_edits = sum(len(draft.revision.edits) for draft in drafts)
    outputs = await call.build(5 * num_edits, lambda: tuple(map(_correction, drafts)))
    usage, timing = await call.build(0, call.finish)
    return CorrectResult(call.model.manifest.name, outputs, usage, timing)


def _later(long_input: LongInput) -> LongInput:
    return LongInput.WINDOWS if long_input == LongInput.ERROR else long_input


async def _round(
    call: EncoderCall,
    drafts: Sequence[_Draft],
    limit: LengthLimit,
    path: str,
    vocabulary: EditVocabulary,
    min_score: float,
) -> None:
    """Runs the model once on each text and edits it. ``path`` is a text's field, for errors."""
    texts = [draft.revision.text for draft in drafts]
    call.renew_window_budget()
    tokenized = await call.tokenize(texts, limit, with_offsets=True, path=path)
    num_numbers = sum(text.num_tokens for text in tokenized) * len(vocabulary.edits)
    validation.check_reply("inputs", num_numbers, MAX_REPLY_NUMBERS, "label scores")
    outputs = await call.run(await call.jobs(tokenized))

    def edit(index: int) -> None:
        draft, text = drafts[index], tokenized[index]
        draft.usages.append(usage_of(text))
        if not draft.seen:
            draft.truncation = truncation_of(text)
        _edit(draft, _chosen(texts[index], text, outputs[index], vocabulary, min_score))

    await call.context.build_each((16 * text.num_tokens for text in tokenized), edit, call.caller)


def _edit(draft: _Draft, edits: list[TextEdit]) -> None:
    """Applies a round's edits, unless the text would be empty, too long or one seen before."""
    revision = draft.revision
    draft.seen.add(revision.text)
    if not edits:
        draft.is_final = True
        return
    edited = Revision(revision.source)
    edited.text, edited.edits = revision.text, revision.edits
    edited.apply(edits)
    longest = MAX_GROWTH * len(revision.source) + 64
    if edited.text in draft.seen or not edited.text.strip() or len(edited.text) > longest:
        draft.is_stuck = True
    else:
        draft.revision = edited


def _chosen(
    source: str,
    text: TokenizedText,
    outputs: Sequence[EncoderOutput],
    vocabulary: EditVocabulary,
    min_score: float,
) -> list[TextEdit]:
    """The edits of a text. Each word gets the most probable edit of its first token."""
    words = words_of(source)
    chosen = []
    index = 0
    tokens = enumerate(best_windows(text), text.windows[0].first_token)
    for token, (window, place) in tokens:
        start, end = text.offsets[token]
        while index < len(words) and words[index].end <= start:
            index += 1
        if index == len(words):
            break
        if end <= words[index].start:  # a token of white space
            continue
        if start <= words[index].start:
            scores = softmax(outputs[window].vector[place])
            best = int(scores.argmax())
            edit, score = vocabulary.edits[best], float(scores[best])
            if edit.kind != EditKind.KEEP and score >= min_score:
                chosen.append(text_edit(source, words, index, edit, score))
            index += 1
    return effective(source, chosen)


def _correction(draft: _Draft) -> Correction:
    revision = draft.revision
    return Correction(
        text=revision.text,
        edits=tuple(
            AppliedEdit(
                start=edit.start,
                end=edit.end,
                original=revision.source[edit.start : edit.end],
                replacement=edit.replacement,
                score=edit.score,
            )
            for edit in revision.edits
        ),
        iterations=len(draft.usages),
        is_final=draft.is_final,
        usage=Usage.total(draft.usages),
        truncation=draft.truncation,
    )
