"""Hugging Face's pipelines of encoders and of speech: from a body to a call, and its response."""

from dataclasses import replace
from typing import Any, cast

from starlette.responses import Response

from model.bundle import ScoreFunction
from server.bounds import MAX_AUDIO_BYTES
from server.errors import InvalidArgumentError
from server.frontends.http import tei_bodies
from server.frontends.http.endpoint import Call, json_response
from server.frontends.http.images import Images, decode_base64
from server.frontends.http.pipeline_bodies import (
    FileBody,
    GenerationParameters,
    PipelineBody,
    PipelineInputs,
    check_parameters,
    texts_of,
)
from server.frontends.http.tei_embed import embed, similarity
from server.frontends.http.tei_headers import answer_with
from server.service.answer import AnswerRequest, AnswerSpan, Question
from server.service.classify import Classification, ClassifyRequest
from server.service.encoder_options import LengthOptions
from server.service.fill_mask import DEFAULT_TOP_K, FilledMask, FillMaskRequest
from server.service.tag import Aggregation, TagRequest, TextEntity
from server.service.transcription_request import (
    TranscribeRequest,
    TranscribeResult,
    TranscriptionOptions,
)

_SCORE_FUNCTIONS = {
    "sigmoid": ScoreFunction.SIGMOID,
    "softmax": ScoreFunction.SOFTMAX,
    "none": ScoreFunction.IDENTITY,
}
# Base64 characters that take as long to decode as one value of a reply takes to build.
_CHARACTERS_PER_VALUE = 128
_MAX_CHARACTERS = 1 << 22  # of all sequences of a reply
_MILLISECONDS = 3  # decimal places of times in seconds


async def features(model: str, call: Call[PipelineBody]) -> Response:
    """Feature extraction, or the similarity of sentences. The responses are those of TEI."""
    body = call.body
    check_parameters(body.given, ())
    given, as_tei = body.inputs, cast("Call[Any]", call)
    if isinstance(given, PipelineInputs):
        inputs = tei_bodies.SimilarityInputs(
            source_sentence=_required(given, "source_sentence"),
            sentences=_required(given, "sentences"),
        )
        similarity_body = tei_bodies.SimilarityBody(inputs=inputs)
        return await similarity(model, replace(as_tei, body=similarity_body))
    embed_body = tei_bodies.EmbedBody(
        inputs=list(texts_of(body)),
        prompt_name=body.prompt_name,
        normalize=body.normalize is not False,
        dimensions=body.dimensions,
        truncate=body.truncate,
        truncation_direction=body.truncation_direction or "Right",
    )
    return await embed(model, replace(as_tei, body=embed_body))


def _required(inputs: PipelineInputs, name: str) -> Any:
    value = getattr(inputs, name)
    if value is None:
        raise InvalidArgumentError(f"inputs.{name}", "is required")
    return value


async def classification(model: str, call: Call[PipelineBody]) -> Response:
    """Labels of texts, an image or a recording, or of a text for the request's candidates."""
    body, given = call.body, call.body.given
    has_candidates = given.candidate_labels is not None
    zero_shot = ("candidate_labels", "hypothesis_template", "multi_label")
    check_parameters(given, zero_shot if has_candidates else ("function_to_apply", "top_k"))
    info = call.service.get_model(model)
    takes_images = info.image is not None and info.image.prompt is None
    takes_file = takes_images or info.audio is not None
    files: tuple[bytes, ...] = ()
    if takes_file:
        files = (await file_of(call, "an image" if takes_images else "a recording"),)
    request = ClassifyRequest(
        model=model,
        inputs=() if takes_file else texts_of(body),
        images=files if takes_images else (),
        audio=() if takes_images else files,
        top_k=given.top_k,
        score_function=_SCORE_FUNCTIONS.get(given.function_to_apply or ""),
        candidate_labels=tuple(given.candidate_labels or ()),
        hypothesis_template=given.hypothesis_template,
        multi_label=bool(given.multi_label),
    )
    result = await call.service.classify(request, call.caller)
    is_flat = takes_file or (has_candidates and isinstance(body.inputs, str))

    def encode() -> Response:
        labels = [_labels(output) for output in result.outputs]
        return answer_with(labels[0] if is_flat else labels, result)

    return await call.service.build(result.num_values, encode, call.caller)


def _labels(output: Classification) -> list[dict[str, Any]]:
    return [{"label": label.label, "score": label.score} for label in output.labels]


async def file_of(call: Call[PipelineBody], kind: str) -> bytes:
    """The body's file, or the one that ``inputs`` has in base64."""
    body = call.body
    if isinstance(body, FileBody):
        return body.data
    if not isinstance(body.inputs, str):
        raise InvalidArgumentError("inputs", f"must be {kind}: a file in base64")
    if kind == "an image":
        images = Images(images=[body.inputs], field="inputs", path="inputs")
        (file,) = await images.files(call)
        return file
    encoded = body.inputs
    if len(encoded) > (MAX_AUDIO_BYTES + 2) // 3 * 4:
        raise InvalidArgumentError("inputs", f"has more than {MAX_AUDIO_BYTES} bytes")
    num_values = len(encoded) // _CHARACTERS_PER_VALUE
    return await call.service.build(
        num_values, lambda: decode_base64(encoded, 0, "inputs"), call.caller
    )


async def token_classification(model: str, call: Call[PipelineBody]) -> Response:
    """Entities of texts. By default, neighbours of one label are joined."""
    given = call.body.given
    names = ("aggregation_strategy", "ignore_labels", "stride", "candidate_labels", "multi_label")
    check_parameters(given, names)
    aggregation = given.aggregation_strategy or Aggregation.SIMPLE
    request = TagRequest(
        model=model,
        inputs=texts_of(call.body),
        aggregation=aggregation,
        ignored_labels=tuple(given.ignore_labels or ()),
        candidate_labels=tuple(given.candidate_labels or ()),
        multi_label=bool(given.multi_label),
        length=LengthOptions(stride=given.stride),
    )
    result = await call.service.tag(request, call.caller)
    label_name = "entity" if aggregation == Aggregation.NONE else "entity_group"

    def encode() -> Response:
        rows = [
            [_entity(entity, label_name) for entity in output.entities] for output in result.outputs
        ]
        return answer_with(rows if isinstance(call.body.inputs, list) else rows[0], result)

    return await call.service.build(result.num_values, encode, call.caller)


def _entity(entity: TextEntity, label_name: str) -> dict[str, Any]:
    return {
        label_name: entity.label,
        "score": entity.score,
        "word": entity.text,
        "start": entity.start,
        "end": entity.end,
    }


async def fill_mask(model: str, call: Call[PipelineBody]) -> Response:
    """Words for the masks of texts; a list of words for each mask if a text has several."""
    given = call.body.given
    check_parameters(given, ("targets", "top_k"))
    texts = texts_of(call.body)
    request = FillMaskRequest(
        model=model, inputs=texts, top_k=given.top_k, targets=tuple(given.targets or ())
    )
    mask = call.service.get_model(model).mask_token
    num_characters = sum(len(text) * text.count(mask) for text in texts) if mask else 0
    if num_characters * (given.top_k or DEFAULT_TOP_K) > _MAX_CHARACTERS:
        raise InvalidArgumentError(
            "top_k", f"the reply would repeat the text in more than {_MAX_CHARACTERS} characters"
        )
    result = await call.service.fill_mask(request, call.caller)

    def encode() -> Response:
        rows: list[Any] = []
        for text, output in zip(texts, result.outputs, strict=True):
            masks = [_candidates(text, mask) for mask in output.masks]
            rows.append(masks[0] if len(masks) == 1 else masks)
        return answer_with(rows if isinstance(call.body.inputs, list) else rows[0], result)

    num_copied = sum(
        len(text) * len(mask.candidates) // _CHARACTERS_PER_VALUE
        for text, output in zip(texts, result.outputs, strict=True)
        for mask in output.masks
    )
    return await call.service.build(result.num_values + num_copied, encode, call.caller)


def _candidates(text: str, mask: FilledMask) -> list[dict[str, Any]]:
    return [
        {
            "score": candidate.score,
            "token": candidate.token_id,
            "token_str": candidate.text,
            "sequence": f"{text[: mask.start]}{candidate.text}{text[mask.end :]}",
        }
        for candidate in mask.candidates
    ]


async def question_answering(model: str, call: Call[PipelineBody]) -> Response:
    """The answers to a question; without a list if ``top_k`` is 1."""
    given, inputs = call.body.given, call.body.inputs
    check_parameters(
        given,
        ("doc_stride", "handle_impossible_answer", "max_answer_len", "max_seq_len", "top_k"),
    )
    if not isinstance(inputs, PipelineInputs):
        raise InvalidArgumentError("inputs", "must have the fields question and context")
    question = Question(
        question=_required(inputs, "question"), context=_required(inputs, "context")
    )
    top_k = 1 if given.top_k is None else given.top_k
    request = AnswerRequest(
        model=model,
        questions=(question,),
        top_k=top_k,
        max_answer_tokens=given.max_answer_len,
        allow_no_answer=bool(given.handle_impossible_answer),
        length=LengthOptions(max_tokens=given.max_seq_len, stride=given.doc_stride),
    )
    result = await call.service.answer(request, call.caller)
    spans = [_span(span) for span in result.outputs[0].spans]
    return answer_with(spans if top_k > 1 or len(spans) != 1 else spans[0], result)


def _span(span: AnswerSpan) -> dict[str, Any]:
    return {"answer": span.text, "score": span.score, "start": span.start, "end": span.end}


async def speech_recognition(model: str, call: Call[PipelineBody]) -> Response:
    """What a recording says, optionally with the times of segments or words."""
    given = call.body.given
    groups = ("generate_kwargs", "generation_parameters")
    check_parameters(given, (*groups, "return_timestamps"))
    options = given.generate_kwargs or given.generation_parameters or GenerationParameters()
    _check_speech_options(options)
    with_words = given.return_timestamps == "word"
    request = TranscribeRequest(
        model=model,
        audio=await file_of(call, "a recording"),
        options=TranscriptionOptions(
            language=options.language or "",
            translate=options.task == "translate",
            temperature=options.temperature or None,
            beam_size=1 if options.num_beams is None else options.num_beams,
            word_timestamps=with_words,
        ),
    )
    result = await call.service.transcribe(request, call.caller)

    def encode() -> Response:
        answer: dict[str, Any] = {"text": result.text}
        if given.return_timestamps:
            answer["chunks"] = _chunks(result, with_words=with_words)
        return json_response(answer)

    return await call.service.build(result.num_values, encode, call.caller)


def _check_speech_options(options: GenerationParameters) -> None:
    for name in GenerationParameters.__struct_fields__:
        allowed = ("language", "task", "temperature", "num_beams")
        if name not in allowed and getattr(options, name) not in (None, False):
            raise InvalidArgumentError(name, "is not supported for models of speech")


def _chunks(result: TranscribeResult, *, with_words: bool) -> list[dict[str, Any]]:
    parts: list[Any] = list(result.segments)
    if with_words:
        parts = [word for segment in result.segments for word in segment.words]
    return [
        {
            "text": part.text,
            "timestamp": [
                round(part.start_seconds, _MILLISECONDS),
                round(part.end_seconds, _MILLISECONDS),
            ],
        }
        for part in parts
    ]
