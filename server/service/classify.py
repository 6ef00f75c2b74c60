"""Classify and Tag: labels of texts, and of their parts."""

from collections.abc import Callable

import numpy as np

from model.bundle import Task
from protos.triune.v1 import encoding_pb2 as pb
from server.engine.requests.sequence import Floats
from server.errors import InvalidArgumentError
from server.service import encoder_options as options
from server.service import validation
from server.service.caller import Caller
from server.service.context import Services
from server.service.encoding import EncoderCall, EncoderOutput, report_of, usage_of
from server.text.entities import Aggregation, Entity, LabelledToken, find_entities
from server.text.tokenizer import Tokenizer
from server.text.windows import LongInput, TokenizedText, best_windows


async def classify(
    request: pb.ClassifyRequest, services: Services, caller: Caller
) -> pb.ClassifyResponse:
    """Raises ``ServeError``."""
    call = EncoderCall.open(request.model, request.version, Task.CLASSIFY, services, caller)
    model, max_bytes = call.model, services.config.max_input_bytes
    top_k = options.integer("options.top_k", request.options, None)
    scores = options.scores("options.score_function", request.options.score_function, model)
    limit = options.limit(request.length, model, LongInput.ERROR, windows=False)
    if request.pairs and request.inputs:
        raise InvalidArgumentError("pairs", "exactly one of inputs and pairs is needed")
    if request.pairs:
        texts, pairs = _checked_pairs(request, max_bytes)
        readings = await call.read(texts, limit, pairs=pairs, path="pairs[{}]")
    else:
        validation.check_texts(request.inputs, max_bytes)
        readings = await call.read(request.inputs, limit)
    outputs = await call.run(call.jobs(readings))
    usage, timing = call.finish()
    return pb.ClassifyResponse(
        model=model.manifest.name,
        outputs=[
            pb.Classification(
                labels=_label_scores(scores(output.vector), model.manifest.labels, top_k),
                usage=usage_of(reading),
                reading=report_of(reading),
            )
            for (output,), reading in zip(outputs, readings, strict=True)
        ],
        usage=usage,
        timing=timing,
    )


def _checked_pairs(request: pb.ClassifyRequest, max_bytes: int) -> tuple[list[str], list[str]]:
    texts = [pair.text for pair in request.pairs]
    pairs = [pair.text_pair for pair in request.pairs]
    validation.check_texts(texts, max_bytes, "pairs", ".text")
    validation.check_texts(pairs, max_bytes, "pairs", ".text_pair")
    return texts, pairs


def _label_scores(
    scores: Floats, labels: tuple[str, ...], top_k: int | None
) -> list[pb.LabelScore]:
    order = np.argsort(-scores, kind="stable")[:top_k]
    return [pb.LabelScore(label=labels[index], score=scores[index]) for index in order]


async def tag(request: pb.TagRequest, services: Services, caller: Caller) -> pb.TagResponse:
    """Raises ``ServeError``."""
    call = EncoderCall.open(request.model, request.version, Task.TAG, services, caller)
    model = call.model
    validation.check_texts(request.inputs, services.config.max_input_bytes)
    aggregation = options.choice(
        "options.aggregation", options.AGGREGATIONS, request.options.aggregation
    )
    min_score = options.fraction("options.min_score", request.options)
    ignored = set(request.options.ignored_labels) or {"O"}
    limit = options.limit(request.length, model, LongInput.WINDOWS)
    readings = await call.read(request.inputs, limit, spans=True)
    outputs = await call.run(call.jobs(readings))

    def entities() -> list[list[Entity]]:
        find = _finder(model.tokenizer, model.manifest.labels, aggregation, ignored)
        triples = zip(request.inputs, readings, outputs, strict=True)
        return [find(text, reading, output) for text, reading, output in triples]

    found = await services.in_thread(entities)
    usage, timing = call.finish()
    return pb.TagResponse(
        model=model.manifest.name,
        outputs=[
            pb.Tagging(
                entities=[
                    pb.Entity(
                        label=entity.label,
                        score=entity.score,
                        start=entity.start,
                        end=entity.end,
                        text=text[entity.start : entity.end],
                    )
                    for entity in row
                    if entity.score >= min_score
                ],
                usage=usage_of(reading),
                reading=report_of(reading),
            )
            for text, row, reading in zip(request.inputs, found, readings, strict=True)
        ],
        usage=usage,
        timing=timing,
    )


def _finder(
    tokenizer: Tokenizer, labels: tuple[str, ...], aggregation: Aggregation, ignored: set[str]
) -> Callable[[str, TokenizedText, list[EncoderOutput]], list[Entity]]:
    def find(text: str, reading: TokenizedText, outputs: list[EncoderOutput]) -> list[Entity]:
        starts = tokenizer.word_starts(text, reading)
        tokens = []
        first = reading.windows[0].first  # of a text whose start was cut off
        for token, (window, index) in enumerate(best_windows(reading), first):
            start, end = _trimmed(text, *reading.spans[token])
            scores = options.softmax(outputs[window].vector[index])
            tokens.append(LabelledToken(scores, start, end, starts[token]))
        return find_entities(tokens, labels, aggregation, ignored)

    return find


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    """Without the spaces that some tokenizers count to the word behind them."""
    covered = text[start:end]
    if not covered.strip():
        return start, end
    return end - len(covered.lstrip()), start + len(covered.rstrip())
