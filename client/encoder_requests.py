"""Builds the requests of the encoder calls.

Only the names of options are checked here; the server validates their values.
"""

from collections.abc import Sequence
from typing import Any

from client import encoder_types as types
from client.messages import build
from client.requests import Images, Pairs, PairsOrImages, Recordings, Texts, texts
from protos.triune.v1 import encoding_pb2 as wire
from protos.triune.v1 import inference_pb2


def embed(model: str, inputs: Texts | Images, options: types.EmbedOptions) -> wire.EmbedRequest:
    """The request of ``Embed``. By default, vectors are sent as packed 32-bit floats."""
    return build(
        wire.EmbedRequest,
        types.EmbedOptions,
        {"encoding_format": types.EncodingFormat.FLOAT32_BYTES, **options},
        model=model,
        **_texts_or_images(inputs),
    )


def embed_part(
    id_: int, model: str, inputs: Texts | Images, options: types.EmbedOptions
) -> wire.EmbedStreamRequest:
    """A request of ``EmbedStream``. Only the first (``id_`` 0) has the model and options."""
    part = wire.EmbedStreamRequest(id=id_, **_texts_or_images(inputs))
    if id_ == 0:
        whole = embed(model, (), options)
        part.model, part.version = whole.model, whole.version
        part.options.CopyFrom(whole.options)
        part.length.CopyFrom(whole.length)
    return part


def _texts_or_images(inputs: Texts | Images) -> dict[str, Any]:
    """The fields ``inputs`` and ``images`` of a request. Raises ``TypeError`` for other values."""
    batch = [inputs] if isinstance(inputs, str | bytes) else list(inputs)
    return {
        "inputs": [each for each in batch if not _is_image(each)],
        "images": [each for each in batch if _is_image(each)],
    }


def _is_image(value: object) -> bool:
    """Whether ``value`` is an image, not a text. Raises ``TypeError`` if it is neither."""
    if not isinstance(value, str | bytes):
        raise TypeError(f"texts are str and images bytes, not {type(value).__name__}")
    return isinstance(value, bytes)


def _text_pairs(pairs: Pairs) -> list[wire.TextPair]:
    return [wire.TextPair(text=text, text_pair=pair) for text, pair in pairs]


def classify(
    model: str,
    inputs: Texts | Images,
    pairs: PairsOrImages,
    options: types.ClassifyOptions,
    audio: Recordings = (),
) -> wire.ClassifyRequest:
    """The request of ``Classify``."""
    pairs = list(pairs)
    of_texts = [(text, str(pair)) for text, pair in pairs if not _is_image(pair)]
    request = build(
        wire.ClassifyRequest,
        types.ClassifyOptions,
        options,
        model=model,
        pairs=_text_pairs(of_texts),
        audio=[audio] if isinstance(audio, bytes) else audio,
        **_texts_or_images(inputs),
    )
    for text, image in pairs:
        if isinstance(image, bytes):
            request.inputs.append(text)
            request.images.append(image)
    return request


def attend(
    model: str, inputs: Texts, pairs: Pairs, options: types.AttendOptions
) -> inference_pb2.AttendRequest:
    """The request of ``Attend``."""
    return build(
        inference_pb2.AttendRequest,
        types.AttendOptions,
        options,
        model=model,
        inputs=texts(inputs),
        pairs=_text_pairs(pairs),
    )


def tag(model: str, inputs: Texts, options: types.TagOptions) -> wire.TagRequest:
    """The request of ``Tag``."""
    return build(wire.TagRequest, types.TagOptions, options, model=model, inputs=texts(inputs))


def fill_mask(model: str, inputs: Texts, options: types.FillMaskOptions) -> wire.FillMaskRequest:
    """The request of ``FillMask``."""
    return build(
        wire.FillMaskRequest, types.FillMaskOptions, options, model=model, inputs=texts(inputs)
    )


def answer(
    model: str, questions: Sequence[types.Question], options: types.AnswerOptions
) -> wire.AnswerRequest:
    """The request of ``Answer``."""
    return build(
        wire.AnswerRequest,
        types.AnswerOptions,
        options,
        model=model,
        questions=[
            wire.Question(question=each.question, context=each.context) for each in questions
        ],
    )


def correct(model: str, inputs: Texts, options: types.CorrectOptions) -> wire.CorrectRequest:
    """The request of ``Correct``."""
    return build(
        wire.CorrectRequest, types.CorrectOptions, options, model=model, inputs=texts(inputs)
    )


def rerank(
    model: str, query: str, documents: Sequence[str], options: types.RerankOptions
) -> wire.RerankRequest:
    """The request of ``Rerank``."""
    return build(
        wire.RerankRequest,
        types.RerankOptions,
        options,
        model=model,
        query=query,
        documents=documents,
    )
