"""Converts responses of the encoder calls to results."""

import numpy as np

from client import encoder_types as types
from client.messages import read_fields
from client.responses import attention_matrix, result, timing, usage
from protos.triune.v1 import encoding_pb2 as wire
from protos.triune.v1 import inference_pb2

_Dtype = np.dtype[np.float32] | np.dtype[np.float16]
_DTYPES: dict[int, _Dtype] = {
    wire.ENCODING_FORMAT_FLOAT32_BYTES: np.dtype("<f4"),
    wire.ENCODING_FORMAT_FLOAT16_BYTES: np.dtype("<f2"),
}


def embed(message: wire.EmbedResponse) -> types.EmbedResult:
    """The response of ``Embed``."""
    return result(types.EmbedResult, message, map(_embedding, message.outputs))


def embed_part(message: wire.EmbedStreamResponse) -> types.EmbedBatch:
    """One response of ``EmbedStream``."""
    return types.EmbedBatch(
        id=message.id,
        model=message.model,
        outputs=tuple(map(_embedding, message.outputs)),
        usage=usage(message.usage),
        timing=timing(message.timing),
    )


def classify(message: wire.ClassifyResponse) -> types.ClassifyResult:
    """The response of ``Classify``."""
    return result(types.ClassifyResult, message, map(_classification, message.outputs))


def attend(message: inference_pb2.AttendResponse) -> types.AttendResult:
    """The response of ``Attend``."""
    return result(types.AttendResult, message, map(_attended_text, message.outputs))


def tag(message: wire.TagResponse) -> types.TagResult:
    """The response of ``Tag``."""
    return result(types.TagResult, message, map(_tagging, message.outputs))


def fill_mask(message: wire.FillMaskResponse) -> types.FillMaskResult:
    """The response of ``FillMask``."""
    return result(types.FillMaskResult, message, map(_mask_filling, message.outputs))


def answer(message: wire.AnswerResponse) -> types.AnswerResult:
    """The response of ``Answer``."""
    return result(types.AnswerResult, message, map(_answers, message.outputs))


def rerank(message: wire.RerankResponse) -> types.RerankResult:
    """The response of ``Rerank``."""
    return result(types.RerankResult, message, map(_ranked_document, message.outputs))


def correct(message: wire.CorrectResponse) -> types.CorrectResult:
    """The response of ``Correct``."""
    return result(types.CorrectResult, message, map(_correction, message.outputs))


def _reading(message: wire.Reading) -> types.Reading:
    return read_fields(types.Reading, message)


def _embedding(message: wire.Embedding) -> types.Embedding:
    values = tuple(message.values)
    dtype = _DTYPES.get(message.encoding_format)
    if dtype is not None:
        values = tuple(np.frombuffer(message.packed, dtype).tolist())
    return types.Embedding(
        values=values,
        usage=usage(message.usage),
        reading=_reading(message.reading),
        tokens=_token_embeddings(message.tokens, dtype or np.dtype("<f4")),
        sparse=_sparse_vector(message.sparse) if message.HasField("sparse") else None,
    )


def _sparse_vector(message: wire.SparseVector) -> types.SparseVector:
    return types.SparseVector(
        indices=tuple(message.indices),
        values=tuple(message.values),
        tokens=tuple(message.tokens),
    )


def _token_embeddings(
    message: wire.TokenEmbeddings, dtype: _Dtype
) -> tuple[types.TokenEmbedding, ...]:
    if not message.tokens:
        return ()
    vectors = np.frombuffer(message.packed, dtype).reshape(-1, message.size)
    columns = zip(message.tokens, message.starts, message.ends, vectors.tolist(), strict=True)
    return tuple(
        types.TokenEmbedding(token=token, start=start, end=end, values=tuple(values))
        for token, start, end, values in columns
    )


def _classification(message: wire.Classification) -> types.Classification:
    return types.Classification(
        labels=tuple(read_fields(types.LabelScore, each) for each in message.labels),
        usage=usage(message.usage),
        reading=_reading(message.reading),
    )


def _attended_text(message: inference_pb2.AttendedText) -> types.AttendedText:
    columns = (message.tokens, message.starts, message.ends, message.texts)
    return types.AttendedText(
        tokens=tuple(
            types.TokenSpan(token=token, start=start, end=end, text=text)
            for token, start, end, text in zip(*columns, strict=True)
        ),
        matrices=tuple(attention_matrix(each, len(message.tokens)) for each in message.matrices),
        usage=usage(message.usage),
        reading=_reading(message.reading),
    )


def _tagging(message: wire.Tagging) -> types.Tagging:
    return types.Tagging(
        entities=tuple(read_fields(types.Entity, each) for each in message.entities),
        usage=usage(message.usage),
        reading=_reading(message.reading),
    )


def _mask_filling(message: wire.MaskFilling) -> types.MaskFilling:
    return types.MaskFilling(
        masks=tuple(map(_filled_mask, message.masks)),
        usage=usage(message.usage),
        reading=_reading(message.reading),
    )


def _filled_mask(message: wire.FilledMask) -> types.FilledMask:
    return types.FilledMask(
        start=message.start,
        end=message.end,
        candidates=tuple(read_fields(types.MaskCandidate, each) for each in message.candidates),
    )


def _answers(message: wire.Answers) -> types.Answers:
    return types.Answers(
        spans=tuple(read_fields(types.AnswerSpan, each) for each in message.spans),
        usage=usage(message.usage),
        reading=_reading(message.reading),
    )


def _correction(message: wire.Correction) -> types.Correction:
    return types.Correction(
        text=message.text,
        edits=tuple(read_fields(types.TextEdit, each) for each in message.edits),
        iterations=message.iterations,
        is_final=message.is_final,
        usage=usage(message.usage),
        reading=_reading(message.reading),
    )


def _ranked_document(message: wire.RankedDocument) -> types.RankedDocument:
    return types.RankedDocument(
        index=message.index,
        score=message.score,
        document=message.document,
        reading=_reading(message.reading),
    )
