"""Splits long texts in Translate into sentences, if the request and the model allow it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from model.bundle import Task
from server.errors import InvalidArgumentError
from server.models.registry import Model
from server.service.caller import Caller
from server.service.context import ServiceContext
from server.service.generation_request import SentenceSplit, TranslateRequest
from server.service.threads import slices_of
from server.text.sentences import Span, SplitText, sentence_spans, split_sentence, split_text

MAX_SENTENCES = 4096  # per request; the queue of most servers is shorter
# Maximum special tokens around a text, plus a space that tokenizers put before it.
_MAX_ADDED_TOKENS = 4
# Line breaks become spaces. Each is one character, so offsets stay the same.
_SPACES = dict.fromkeys(map(ord, "\r\n\u2028\u2029"), " ")


@dataclass(frozen=True, slots=True)
class SentencePlace:
    """The place of a sentence: its text's index in the request, and its index in the text."""

    text: int
    sentence: int


@dataclass(frozen=True, slots=True)
class SentencePlan:
    """The sentences of a request's texts, in the order of its jobs.

    The first sentences of all texts come before the others, so that a text with one sentence keeps
    the job index, and thus the seed, that it has without splitting.
    """

    texts: tuple[SplitText, ...]
    places: tuple[SentencePlace, ...]
    inputs: tuple[str, ...]


def should_split(request: TranslateRequest, model: Model) -> bool:
    """Whether to split those of a request's texts that have several sentences.

    Raises:
        InvalidArgumentError: the mode is ``ON``, and an option needs the whole text; the error
            names the option.
    """
    mode = request.sentence_split
    if mode == SentenceSplit.OFF:
        return False
    option = _option_for_whole_texts(request)
    if mode == SentenceSplit.ON:
        if option:
            raise InvalidArgumentError(
                option, "is for a whole output, so it cannot be combined with sentence_split ON"
            )
        return True
    # A model that also answers Generate reads its task from the start of the text.
    return not option and Task.GENERATE not in model.manifest.tasks


def _option_for_whole_texts(request: TranslateRequest) -> str:
    """The name of the first given option that needs the whole text; "" if there is none."""
    decoding, stopping = request.decoding, request.stopping
    given = {
        "grammar": decoding.grammar is not None,
        "target_prefix": any(decoding.target_prefix),
        "stop_strings": stopping.stop_strings,
        "stop_token_ids": stopping.stop_token_ids,
        "ignore_eos": stopping.ignore_eos,
        "min_new_tokens": request.logits.min_new_tokens,
        "prompt_logprobs": request.response.prompt_logprobs,
    }
    return next((name for name, value in given.items() if value), "")


async def plan_sentences(
    request: TranslateRequest, model: Model, context: ServiceContext, caller: Caller
) -> SentencePlan | None:
    """Splits the texts of a request; ``None`` if each is a single sentence that the model accepts.

    Raises:
        InvalidArgumentError: there are more than :data:`MAX_SENTENCES` sentences.
        ServeError: the caller's deadline passed, or too much work is waiting.
    """
    manifest = model.manifest
    source = request.source_language or manifest.source_language or ""
    target = request.target_language or manifest.target_language or ""
    texts: list[SplitText] = []
    left = MAX_SENTENCES

    def split_some(start: int, stop: int) -> None:
        nonlocal left
        for index in range(start, stop):
            text = request.inputs[index]
            spans = list(islice(sentence_spans(text, source), left + 1))
            if len(spans) < 2 and not _is_long(text, model):
                spans = [(0, len(text))]
            elif not spans:
                spans = [_first_number(text, model)]
            spans = list(islice(_fitting(text, spans, model), left + 1))
            left -= max(1, len(spans))
            if left < 0:
                raise InvalidArgumentError(
                    f"inputs[{index}]",
                    f"the request has more than {MAX_SENTENCES} sentences: send fewer at once",
                )
            texts.append(split_text(text, spans, source, target))

    await context.run_slices(slices_of(map(len, request.inputs), split_some), caller)
    if not any(split.is_split for split in texts):
        return None
    places = [
        SentencePlace(index, sentence)
        for index, split in enumerate(texts)
        for sentence in range(len(split.spans))
    ]
    places.sort(key=lambda place: place.sentence > 0)  # stable
    return SentencePlan(
        tuple(texts),
        tuple(places),
        tuple(_sentence(request.inputs[place.text], texts[place.text], place) for place in places),
    )


def _fitting(text: str, spans: Sequence[Span], model: Model) -> Iterator[Span]:
    """Yields the sentences ``spans``; splits those with more tokens than the model accepts.

    Their parts have at most half as many tokens, which leaves room for longer translations.
    """
    room = max(1, model.max_length // 2 - _MAX_ADDED_TOKENS)
    for span in spans:
        sentence = text[slice(*span)]
        if _is_long(sentence, model):
            yield from split_sentence(text, span, model.tokenizer.offsets(sentence), room)
        else:
            yield span


def _first_number(text: str, model: Model) -> Span:
    """The first token of digits, else the first token; all of a text without tokens.

    A text without a letter is kept, but its output needs a sentence.
    """
    tokens = [token for token in model.tokenizer.offsets(text) if token is not None]
    numbers = (token for token in tokens if text[slice(*token)].strip().isdecimal())
    return next(numbers, tokens[0] if tokens else (0, len(text)))


def _is_long(text: str, model: Model) -> bool:
    """Whether a text has more tokens than the model accepts."""
    # A token has at least one byte.
    may_be_long = len(text.encode()) + _MAX_ADDED_TOKENS > model.max_source_length
    return may_be_long and len(model.tokenizer.encode([text])[0]) > model.max_source_length


def _sentence(text: str, split: SplitText, place: SentencePlace) -> str:
    """The sentence on one line; a text that is not split is returned unchanged."""
    if not split.is_split:
        return text
    start, end = split.spans[place.sentence]
    return text[start:end].translate(_SPACES)
