"""The Classify call: maps texts, pairs of texts, images or recordings to labels with scores."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field

import numpy as np

from model.bundle import ScoreFunction, Task
from server.bounds import (
    INPUT_BYTES,
    MAX_AUDIO_BYTES,
    MAX_IMAGE_BYTES,
    MAX_IMAGES,
    MAX_INTEGER,
    MAX_LABELS,
    MAX_NAME_BYTES,
    MAX_PREFIX_BYTES,
    MAX_RECORDINGS,
    MAX_REPLY_VALUES,
    MAX_TEXTS,
    bounded,
    ruled,
    sized,
)
from server.errors import InvalidArgumentError
from server.service import validation
from server.service.audio_inputs import mean_logits, prepared_recordings
from server.service.caller import Caller
from server.service.context import ServiceContext
from server.service.encoder_call import EncoderCall
from server.service.encoder_options import (
    Floats,
    LengthOptions,
    check_integer,
    length_limit,
    score_function,
)
from server.service.images import (
    add_images,
    check_alone,
    check_given,
    prepare_images,
    reserved,
)
from server.service.prepared_inputs import PreparedInputs
from server.service.requests import ModelRequest
from server.service.text_pairs import TextPair, tokenize_inputs_or_pairs
from server.service.truncation import Truncation, usage_of
from server.service.usage import Timing, Usage
from server.service.zero_shot import Entailment, check_num_pairs, hypotheses
from server.text.windows import LongInput


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifyRequest(ModelRequest):
    """Has one of ``inputs``, ``pairs``, ``images`` and ``audio``; or ``inputs`` with an image each.

    ``images`` are files, for a model that takes images; so are recordings, in ``audio``.

    ``top_k`` limits the labels to the k best; ``None`` returns all. ``score_function`` maps logits
    to scores; ``None`` means the function that the model was trained with.

    ``candidate_labels`` replace the model's labels (zero-shot classification of ``inputs`` with a
    natural language inference model). ``hypothesis_template`` has ``{}`` in place of a label;
    ``None`` means :data:`DEFAULT_TEMPLATE`. With ``multi_label``, several labels may apply.
    """

    inputs: tuple[str, ...] = ruled(INPUT_BYTES, (), max_items=MAX_TEXTS)
    pairs: tuple[TextPair, ...] = sized((), max_items=MAX_TEXTS)
    images: tuple[bytes, ...] = sized((), max_items=MAX_IMAGES, max_bytes=MAX_IMAGE_BYTES)
    audio: tuple[bytes, ...] = sized((), max_items=MAX_RECORDINGS, max_bytes=MAX_AUDIO_BYTES)
    top_k: int | None = bounded(None, 1, MAX_INTEGER)
    score_function: ScoreFunction | None = None
    candidate_labels: tuple[str, ...] = sized((), max_items=MAX_LABELS, max_bytes=MAX_NAME_BYTES)
    hypothesis_template: str | None = sized(None, max_bytes=MAX_PREFIX_BYTES)
    multi_label: bool = False
    length: LengthOptions = field(default_factory=LengthOptions)


@dataclass(frozen=True, slots=True)
class LabelScore:
    """A label and its score."""

    label: str
    score: float


@dataclass(frozen=True, slots=True)
class Classification:
    """One input's ``labels``, best first."""

    labels: tuple[LabelScore, ...]
    usage: Usage
    truncation: Truncation


@dataclass(frozen=True, slots=True)
class ClassifyResult:
    """The result of Classify, with outputs in the order of the inputs or pairs."""

    model: str
    outputs: tuple[Classification, ...]
    usage: Usage
    timing: Timing

    @property
    def num_values(self) -> int:
        """Number of numbers and short texts in the reply."""
        return sum(2 + 2 * len(output.labels) for output in self.outputs)


async def classify(
    request: ClassifyRequest, context: ServiceContext, caller: Caller
) -> ClassifyResult:
    """Classifies each text, pair, image or recording.

    Raises:
        ServeError: an input or option is invalid, the model is unknown or does not classify, or
            its queue is full.
    """
    call = EncoderCall.open(request, Task.CLASSIFY, context, caller)
    model = call.model
    check_integer("top_k", request.top_k)
    if request.candidate_labels:
        return await _classify_by_candidates(request, call)
    for name in ("hypothesis_template", "multi_label"):
        if getattr(request, name):
            raise InvalidArgumentError(name, "needs candidate_labels")
    to_scores = score_function(request.score_function, model)
    num_labels = min(request.top_k or MAX_INTEGER, len(model.manifest.labels))
    given = (request.inputs, request.pairs, request.images, request.audio)
    num_inputs = sum(map(len, given))
    num_values = num_inputs * num_labels
    validation.check_reply("top_k", num_values, MAX_REPLY_VALUES, "labels")
    async with _prepared(request, call) as inputs:
        outputs = await call.run(inputs.jobs)

    def result() -> ClassifyResult:
        usage, timing = call.finish()
        return ClassifyResult(
            model=model.manifest.name,
            outputs=tuple(
                Classification(
                    labels=_best_labels(
                        to_scores(mean_logits(own, jobs)), model.manifest.labels, request.top_k
                    ),
                    usage=own_usage,
                    truncation=truncation,
                )
                for own, jobs, own_usage, truncation in zip(
                    outputs, inputs.jobs, inputs.usages, inputs.truncations, strict=True
                )
            ),
            usage=usage,
            timing=timing,
        )

    return await call.build(num_values, result)


async def _classify_by_candidates(request: ClassifyRequest, call: EncoderCall) -> ClassifyResult:
    """Classifies each text by the request's labels; see :mod:`server.service.zero_shot`."""
    model, inputs, labels = call.model, request.inputs, request.candidate_labels
    entailment = Entailment.of(model.manifest.name, model.manifest.labels)
    for name in ("pairs", "images", "audio", "score_function"):
        if getattr(request, name):
            raise InvalidArgumentError(name, "cannot be combined with candidate_labels")
    validation.check_texts(inputs, call.context.config.max_input_bytes)
    check_num_pairs(len(inputs), len(labels))
    limit = length_limit(request.length, model, LongInput.ERROR, windows=False)
    seconds = hypotheses(labels, request.hypothesis_template)
    tokenized = await call.tokenize(
        [text for text in inputs for _ in labels],
        limit,
        pairs=seconds * len(inputs),
        path="inputs[{}]",
        num_per_input=len(labels),
    )
    outputs = await call.run(await call.jobs(tokenized))

    def result() -> ClassifyResult:
        usage, timing = call.finish()
        classifications = []
        for start in range(0, len(outputs), len(labels)):
            texts = tokenized[start : start + len(labels)]
            logits = np.stack([output.vector for (output,) in outputs[start : start + len(labels)]])
            scores = entailment.scores(logits, multi_label=request.multi_label)
            truncated = max(text.num_truncated_tokens for text in texts)
            classifications.append(
                Classification(
                    labels=_best_labels(scores, labels, request.top_k),
                    usage=Usage.total(map(usage_of, texts)),
                    truncation=Truncation(truncated, windows=1),
                )
            )
        return ClassifyResult(model.manifest.name, tuple(classifications), usage, timing)

    return await call.build(len(tokenized), result)


@asynccontextmanager
async def _prepared(request: ClassifyRequest, call: EncoderCall) -> AsyncIterator[PreparedInputs]:
    """The inputs, for the block that runs them; it holds the memory of images and recordings."""
    if request.audio:
        check_alone("recordings", inputs=request.inputs, pairs=request.pairs, images=request.images)
        async with prepared_recordings(request.audio, request.length, call) as recordings:
            yield recordings
        return
    async with reserved(request.images, call):
        yield await _prepare(request, call)


async def _prepare(request: ClassifyRequest, call: EncoderCall) -> PreparedInputs:
    """Texts, pairs of texts, or images."""
    length = request.length
    check_given(call, request.inputs, request.pairs, request.images)
    if request.images and not (request.inputs and call.model.manifest.reads_texts):
        check_alone(inputs=request.inputs, pairs=request.pairs, **asdict(length))
        return await prepare_images(request.images, call)
    limit = length_limit(length, call.model, LongInput.ERROR, windows=False)
    tokenized = await tokenize_inputs_or_pairs(
        request.inputs, request.pairs, call, limit, has_images=bool(request.images)
    )
    texts = PreparedInputs.of(tokenized, await call.jobs(tokenized))
    return await add_images(texts, request.images, call) if request.images else texts


def _best_labels(
    scores: Floats, labels: tuple[str, ...], top_k: int | None
) -> tuple[LabelScore, ...]:
    order = np.argsort(-scores, kind="stable")[:top_k]
    return tuple(LabelScore(labels[index], float(scores[index])) for index in order)
