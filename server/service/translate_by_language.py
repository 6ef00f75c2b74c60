"""Translates between languages: selects the models, detects the source, and keeps markup."""

from collections.abc import Sequence
from dataclasses import dataclass

from server.engine.requests.job import Delivery
from server.errors import InvalidArgumentError
from server.service import validation
from server.service.caller import Caller
from server.service.collect import collect
from server.service.context import ServiceContext
from server.service.detect import DetectRequest, detect_languages
from server.service.generation_options import (
    MAX_BEAMS,
    AttentionOptions,
    DecodingOptions,
    ResponseOptions,
)
from server.service.generation_request import GeneratedOutput, TranslateRequest
from server.service.translate import prepare_translate
from server.service.translation_routes import Hop, TranslationRoutes
from server.text.language_detector import MAX_CHARACTERS, DetectedLanguage
from server.text.markup import MAX_TAGS, MarkupSegment, segments
from server.text.tag_placement import AlignedSpan, escaped, place_tags

AUTO = "auto"
MAX_SEGMENTS = 32  # maximum HTML segments that are translated at once


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageRequest:
    """A request. ``source`` is a language code or :data:`AUTO`.

    ``num_alternatives`` is the number of further translations. With ``is_html``, the inputs are
    HTML, whose markup stays in place.
    """

    inputs: tuple[str, ...]
    source: str
    target: str
    num_alternatives: int = 0
    is_html: bool = False


@dataclass(frozen=True, slots=True)
class LanguageResult:
    """The translations ``texts``, and other translations of each input as ``alternatives``.

    ``detected`` is the source language if it was detected, else ``None``.
    """

    texts: tuple[str, ...]
    alternatives: tuple[tuple[str, ...], ...]
    detected: DetectedLanguage | None = None


async def translate_by_language(
    request: LanguageRequest, context: ServiceContext, caller: Caller
) -> LanguageResult:
    """Translates texts from one language to another with the served models.

    Raises:
        ServeError: a language is not served, or an input is empty or too long.
    """
    texts = request.inputs
    validation.check_texts(texts, context.config.max_input_bytes)
    most = min(MAX_BEAMS, context.config.num_slots) - 1
    if not 0 <= request.num_alternatives <= most:
        raise InvalidArgumentError(
            "alternatives", f"{request.num_alternatives} is not in 0 … {most}"
        )
    if request.is_html and request.num_alternatives:
        raise InvalidArgumentError("alternatives", "are not available for HTML")
    source, detected = request.source, None
    if source == AUTO:
        samples = texts
        if request.is_html:
            samples = await context.in_thread(lambda: tuple(map(_sample, texts)), caller)
        detected = (await detect_languages(DetectRequest(inputs=samples), context, caller))[0]
        source = detected.language
    hops = TranslationRoutes(context.registry).find(source, request.target)
    alternatives: tuple[tuple[str, ...], ...] = ((),) * len(texts)
    for hop in hops:
        with context.catalog.calls.of(hop.model):
            if request.is_html:
                texts = await _translate_html(texts, hop, context, caller)
            else:
                is_last = hop is hops[-1]
                count = 1 + (request.num_alternatives if is_last else 0)
                translations = await _translate_texts(texts, hop, context, caller, count)
                texts = tuple(each[0] for each in translations)
                alternatives = tuple(each[1:] for each in translations)
    return LanguageResult(texts, alternatives, detected)


def _sample(document: str) -> str:
    """The first texts of an HTML document, to detect their language; if none, the document."""
    found, size = [], 0
    for part in segments(document):
        if isinstance(part, MarkupSegment) and part.is_text:
            found.append(part.text)
            size += len(part.text)
            if size >= MAX_CHARACTERS:
                break
    return "\n".join(found) or document


async def _translate_texts(
    texts: Sequence[str], hop: Hop, context: ServiceContext, caller: Caller, count: int
) -> list[tuple[str, ...]]:
    """Up to ``count`` different translations of each text, best first. Empty texts stay empty."""
    given = [text for text in texts if text.strip()]  # an earlier model may return no text
    outputs = iter(await _translate(given, hop, context, caller, count=count) if given else ())
    return [_distinct(next(outputs)) if text.strip() else (text,) for text in texts]


def _distinct(output: GeneratedOutput) -> tuple[str, ...]:
    """The texts of the hypotheses, without duplicates."""
    return tuple(dict.fromkeys(hypothesis.text for hypothesis in output.hypotheses))


async def _translate(
    texts: Sequence[str],
    hop: Hop,
    context: ServiceContext,
    caller: Caller,
    *,
    count: int = 1,
    attention: AttentionOptions | None = None,
) -> tuple[GeneratedOutput, ...]:
    request = TranslateRequest(
        model=hop.model,
        inputs=tuple(texts),
        source_language=hop.source,
        target_language=hop.target,
        decoding=DecodingOptions(num_hypotheses=count, alternatives=count > 1),
        response=ResponseOptions(attention=attention),
    )
    prepared = await prepare_translate(request, context, caller, Delivery.WHOLE)
    return (await collect(prepared, context)).outputs


async def _translate_html(
    documents: Sequence[str], hop: Hop, context: ServiceContext, caller: Caller
) -> tuple[str, ...]:
    """Translates the texts of HTML documents. Texts with inline tags need alignments."""
    for index, document in enumerate(documents):
        if document.count("<") > MAX_TAGS:
            raise InvalidArgumentError(f"inputs[{index}]", f"has more than {MAX_TAGS} tags")
    parsed = await context.in_thread(
        lambda: [list(segments(document)) for document in documents], caller
    )
    found = [part for parts in parsed for part in parts if isinstance(part, MarkupSegment)]
    texts = [segment for segment in found if segment.is_text]
    results: dict[int, str] = {}
    for attention in (None, AttentionOptions(average=True, alignments=True)):
        group = [segment for segment in texts if bool(segment.elements) == bool(attention)]
        for batch in (
            group[start : start + MAX_SEGMENTS] for start in range(0, len(group), MAX_SEGMENTS)
        ):
            inputs = [segment.text for segment in batch]
            outputs = await _translate(inputs, hop, context, caller, attention=attention)
            for segment, output in zip(batch, outputs, strict=True):
                results[id(segment)] = _placed(segment, output)
    return tuple(
        "".join(part if isinstance(part, str) else _written(part, results) for part in parts)
        for parts in parsed
    )


def _written(segment: MarkupSegment, results: dict[int, str]) -> str:
    if id(segment) not in results:
        return segment.source
    return escaped(segment.before) + results[id(segment)] + escaped(segment.after)


def _placed(segment: MarkupSegment, output: GeneratedOutput) -> str:
    best = output.hypotheses[0]
    if not segment.elements:
        return escaped(best.text)
    attention = best.finish.attention
    spans = [
        AlignedSpan(each.source_start, each.source_end, each.target_start, each.target_end)
        for each in (attention.alignments if attention is not None else ())
    ]
    return place_tags(segment.text, best.text, segment.elements, spans)
