"""From the wire's responses to values, of the calls to encoders."""

import numpy as np

from client import encoder_types as types
from client.responses import timing, usage
from protos.triune.v1 import encoding_pb2 as wire

_Dtype = np.dtype[np.float32] | np.dtype[np.float16]
_DTYPES: dict[int, _Dtype] = {
    wire.ENCODING_FORMAT_FLOAT32_BYTES: np.dtype("<f4"),
    wire.ENCODING_FORMAT_FLOAT16_BYTES: np.dtype("<f2"),
}


def _reading(message: wire.Reading) -> types.Reading:
    return types.Reading(truncated_tokens=message.truncated_tokens, windows=message.windows)


def _embedding(message: wire.Embedding) -> types.Embedding:
    values = tuple(message.values)
    dtype = _DTYPES.get(message.encoding_format)
    if dtype is not None:
        values = tuple(np.frombuffer(message.packed, dtype).tolist())
    return types.Embedding(
        values=values,
        usage=usage(message.usage),
        reading=_reading(message.reading),
        tokens=_tokens(message.tokens, dtype or np.dtype("<f4")),
    )


def _tokens(message: wire.TokenEmbeddings, dtype: _Dtype) -> tuple[types.TokenEmbedding, ...]:
    if not message.tokens:
        return ()
    vectors = np.frombuffer(message.packed, dtype).reshape(-1, message.size)
    rows = zip(message.tokens, message.starts, message.ends, vectors.tolist(), strict=True)
    return tuple(
        types.TokenEmbedding(token=token, start=start, end=end, values=tuple(values))
        for token, start, end, values in rows
    )


def embed(message: wire.EmbedResponse) -> types.EmbedResult:
    """What ``Embed`` answers."""
    return types.EmbedResult(
        model=message.model,
        outputs=tuple(_embedding(output) for output in message.outputs),
        usage=usage(message.usage),
        timing=timing(message.timing),
    )


def embed_part(message: wire.EmbedStreamResponse) -> types.EmbedBatch:
    """What ``EmbedStream`` sends."""
    return types.EmbedBatch(
        id=message.id,
        model=message.model,
        outputs=tuple(_embedding(output) for output in message.outputs),
        usage=usage(message.usage),
        timing=timing(message.timing),
    )


def classify(message: wire.ClassifyResponse) -> types.ClassifyResult:
    """What ``Classify`` answers."""
    return types.ClassifyResult(
        model=message.model,
        outputs=tuple(
            types.Classification(
                labels=tuple(types.LabelScore(row.label, row.score) for row in output.labels),
                usage=usage(output.usage),
                reading=_reading(output.reading),
            )
            for output in message.outputs
        ),
        usage=usage(message.usage),
        timing=timing(message.timing),
    )


def tag(message: wire.TagResponse) -> types.TagResult:
    """What ``Tag`` answers."""
    return types.TagResult(
        model=message.model,
        outputs=tuple(
            types.Tagging(
                entities=tuple(
                    types.Entity(
                        label=row.label,
                        score=row.score,
                        start=row.start,
                        end=row.end,
                        text=row.text,
                    )
                    for row in output.entities
                ),
                usage=usage(output.usage),
                reading=_reading(output.reading),
            )
            for output in message.outputs
        ),
        usage=usage(message.usage),
        timing=timing(message.timing),
    )


def _mask(message: wire.FilledMask) -> types.FilledMask:
    return types.FilledMask(
        start=message.start,
        end=message.end,
        candidates=tuple(
            types.MaskCandidate(text=row.text, token_id=row.token_id, score=row.score)
            for row in message.candidates
        ),
    )


def fill_mask(message: wire.FillMaskResponse) -> types.FillMaskResult:
    """What ``FillMask`` answers."""
    return types.FillMaskResult(
        model=message.model,
        outputs=tuple(
            types.MaskFilling(
                masks=tuple(_mask(row) for row in output.masks),
                usage=usage(output.usage),
                reading=_reading(output.reading),
            )
            for output in message.outputs
        ),
        usage=usage(message.usage),
        timing=timing(message.timing),
    )


def answer(message: wire.AnswerResponse) -> types.AnswerResult:
    """What ``Answer`` answers."""
    return types.AnswerResult(
        model=message.model,
        outputs=tuple(
            types.Answers(
                spans=tuple(
                    types.AnswerSpan(text=row.text, score=row.score, start=row.start, end=row.end)
                    for row in output.spans
                ),
                usage=usage(output.usage),
                reading=_reading(output.reading),
            )
            for output in message.outputs
        ),
        usage=usage(message.usage),
        timing=timing(message.timing),
    )


def rerank(message: wire.RerankResponse) -> types.RerankResult:
    """What ``Rerank`` answers."""
    return types.RerankResult(
        model=message.model,
        outputs=tuple(
            types.RankedDocument(
                index=row.index,
                score=row.score,
                document=row.document,
                reading=_reading(row.reading),
            )
            for row in message.outputs
        ),
        usage=usage(message.usage),
        timing=timing(message.timing),
    )
