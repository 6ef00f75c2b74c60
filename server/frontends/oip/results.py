"""Encodes the service's results as tensors. Only the requested tensors are built."""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from server.frontends.oip.requests import DecodedRequest
from server.frontends.oip.signatures import Task
from server.frontends.oip.tensors import OutputTensor, numbers_tensor, texts_tensor
from server.service.answer import AnswerResult
from server.service.classify import ClassifyResult
from server.service.correct import CorrectResult
from server.service.embedding import EmbedResult, SparseVector, TokenEmbeddings
from server.service.fill_mask import FillMaskResult
from server.service.generation_request import GenerationResult, Hypothesis, TextChunk
from server.service.rerank import RerankResult
from server.service.score import ScoreResult
from server.service.tag import TagResult
from server.service.transcription_request import Segment, TranscribeResult, Word

Makers = dict[str, Callable[[], OutputTensor]]
"""A function for each output of a task, in the order of its signature. Only those of requested
outputs are called.
"""

PADDING = -1  # fills rows of token ids


def encode_result(decoded: DecodedRequest, result: Any) -> tuple[OutputTensor, ...]:
    """The requested outputs, in the order of the task's signature."""
    return _select(decoded, _ENCODERS[decoded.task](decoded, result))


def encode_chunk(decoded: DecodedRequest, chunk: TextChunk) -> tuple[OutputTensor, ...]:
    """The requested outputs of one chunk of a stream, each with one text.

    Token counts and the finish reason are in the last chunk of an output; before it, they are 0 and
    empty. A chunk's log-probability is that of its own tokens.
    """
    finish = chunk.finish
    usage = None if finish is None else finish.usage
    return _select(
        decoded,
        {
            "text_output": lambda: texts_tensor("text_output", (chunk.text,)),
            "finish_reason": lambda: texts_tensor(
                "finish_reason", ("" if finish is None else finish.reason.value,)
            ),
            "cumulative_logprob": lambda: numbers_tensor(
                "cumulative_logprob", "FP32", [sum(token.logprob for token in chunk.logprobs)]
            ),
            "num_input_tokens": lambda: numbers_tensor(
                "num_input_tokens", "UINT32", [0 if usage is None else usage.input_tokens]
            ),
            "num_output_tokens": lambda: numbers_tensor(
                "num_output_tokens", "UINT32", [0 if usage is None else usage.output_tokens]
            ),
            "output_ids": lambda: _padded("output_ids", [chunk.token_ids]),
        },
    )


def _select(decoded: DecodedRequest, makers: Makers) -> tuple[OutputTensor, ...]:
    return tuple(make() for name, make in makers.items() if name in decoded.outputs)


def _generation(decoded: DecodedRequest, result: GenerationResult) -> Makers:
    rows = [output.hypotheses for output in result.outputs]
    width = max(len(row) for row in rows)
    several = any(output.has_several for output in result.outputs)
    shape = (len(rows), width) if several else decoded.shape
    # Beam search may find fewer hypotheses than requested; the missing ones are empty.
    flat: list[Hypothesis | None] = list(
        chain.from_iterable([*row, *[None] * (width - len(row))] for row in rows)
    )

    def numbers(name: str, datatype: str, value: Callable[[Hypothesis], float]) -> OutputTensor:
        values = [0 if one is None else value(one) for one in flat]
        return numbers_tensor(name, datatype, values, shape)

    return {
        "text_output": lambda: texts_tensor(
            "text_output", ["" if one is None else one.text for one in flat], shape
        ),
        "finish_reason": lambda: texts_tensor(
            "finish_reason",
            ["" if one is None else one.finish.reason.value for one in flat],
            shape,
        ),
        "cumulative_logprob": lambda: numbers(
            "cumulative_logprob", "FP32", lambda one: sum(token.logprob for token in one.logprobs)
        ),
        # All hypotheses of an input share its tokens, so only the first one counts them.
        "num_input_tokens": lambda: numbers(
            "num_input_tokens", "UINT32", lambda one: one.finish.usage.input_tokens
        ),
        "num_output_tokens": lambda: numbers(
            "num_output_tokens", "UINT32", lambda one: one.finish.usage.output_tokens
        ),
        "output_ids": lambda: _padded(
            "output_ids", [() if one is None else one.token_ids for one in flat]
        ),
    }


def _embed(_: DecodedRequest, result: EmbedResult) -> Makers:
    makers: Makers = {}
    vectors = [output.vector for output in result.outputs if output.vector is not None]
    if vectors:
        makers["embedding_output"] = lambda: numbers_tensor(
            "embedding_output", "FP32", np.stack(vectors)
        )
    sparse = [output.sparse for output in result.outputs if output.sparse is not None]
    if sparse:
        makers |= _sparse_vectors(sparse)
    tokens = [output.tokens for output in result.outputs if output.tokens is not None]
    if tokens:
        makers |= _token_vectors(tokens)
    return makers


def _sparse_vectors(vectors: Sequence[SparseVector]) -> Makers:
    """The weights of all texts, concatenated; each text's weights are sorted by token id."""

    def indices() -> OutputTensor:
        texts = np.repeat(np.arange(len(vectors)), [each.values.size for each in vectors])
        token_ids = np.concatenate([each.indices for each in vectors])
        return numbers_tensor("indices", "INT64", np.stack([texts, token_ids], axis=1))

    return {
        "indices": indices,
        "values": lambda: numbers_tensor(
            "values", "FP32", np.concatenate([each.values for each in vectors])
        ),
        "tokens": lambda: texts_tensor("tokens", [one for each in vectors for one in each.tokens]),
    }


def _token_vectors(texts: Sequence[TokenEmbeddings]) -> Makers:
    """The token vectors of all texts, concatenated."""
    return {
        "token_embeddings": lambda: numbers_tensor(
            "token_embeddings", "FP32", np.concatenate([each.vectors for each in texts])
        ),
        "tokens": lambda: texts_tensor("tokens", [one for each in texts for one in each.tokens]),
        "spans": lambda: _spans(
            (index, start, end) for index, each in enumerate(texts) for start, end in each.offsets
        ),
    }


def _classify(_: DecodedRequest, result: ClassifyResult) -> Makers:
    shape = (len(result.outputs), len(result.outputs[0].labels))
    labels = [label for output in result.outputs for label in output.labels]
    return {
        "labels": lambda: texts_tensor("labels", [one.label for one in labels], shape),
        "scores": lambda: numbers_tensor("scores", "FP32", [one.score for one in labels], shape),
    }


def _tag(_: DecodedRequest, result: TagResult) -> Makers:
    found = [(index, one) for index, output in enumerate(result.outputs) for one in output.entities]
    return {
        "labels": lambda: texts_tensor("labels", [one.label for _, one in found]),
        "entities": lambda: texts_tensor("entities", [one.text for _, one in found]),
        "scores": lambda: numbers_tensor("scores", "FP32", [one.score for _, one in found]),
        "spans": lambda: _spans((index, one.start, one.end) for index, one in found),
    }


def _fill_mask(_: DecodedRequest, result: FillMaskResult) -> Makers:
    masks = [(index, mask) for index, output in enumerate(result.outputs) for mask in output.masks]
    shape = (len(masks), len(masks[0][1].candidates))
    candidates = [candidate for _, mask in masks for candidate in mask.candidates]
    return {
        "tokens": lambda: texts_tensor("tokens", [one.text for one in candidates], shape),
        "token_ids": lambda: numbers_tensor(
            "token_ids", "INT64", [one.token_id for one in candidates], shape
        ),
        "scores": lambda: numbers_tensor(
            "scores", "FP32", [one.score for one in candidates], shape
        ),
        "spans": lambda: _spans((index, mask.start, mask.end) for index, mask in masks),
    }


def _answer(_: DecodedRequest, result: AnswerResult) -> Makers:
    found = [(index, span) for index, output in enumerate(result.outputs) for span in output.spans]
    return {
        "answers": lambda: texts_tensor("answers", [span.text for _, span in found]),
        "scores": lambda: numbers_tensor("scores", "FP32", [span.score for _, span in found]),
        "spans": lambda: _spans((index, span.start, span.end) for index, span in found),
    }


def _rerank(decoded: DecodedRequest, result: RerankResult) -> Makers:
    scores = np.zeros(len(result.outputs), np.float32)
    for document in result.outputs:
        scores[document.index] = document.score
    return {"scores": lambda: numbers_tensor("scores", "FP32", scores, decoded.shape)}


def _correct(decoded: DecodedRequest, result: CorrectResult) -> Makers:
    found = [(index, one) for index, output in enumerate(result.outputs) for one in output.edits]
    return {
        "text_output": lambda: texts_tensor(
            "text_output", [output.text for output in result.outputs], decoded.shape
        ),
        "replacements": lambda: texts_tensor("replacements", [one.replacement for _, one in found]),
        "scores": lambda: numbers_tensor("scores", "FP32", [one.score for _, one in found]),
        "spans": lambda: _spans((index, one.start, one.end) for index, one in found),
    }


def _score(decoded: DecodedRequest, result: ScoreResult) -> Makers:
    outputs = result.outputs
    return {
        "scores": lambda: numbers_tensor(
            "scores", "FP32", [output.score for output in outputs], decoded.shape
        ),
        "num_tokens": lambda: numbers_tensor(
            "num_tokens", "INT64", [output.num_tokens for output in outputs], decoded.shape
        ),
    }


def _transcribe(_: DecodedRequest, result: TranscribeResult) -> Makers:
    segments = result.segments
    words = [word for segment in segments for word in segment.words]
    return {
        "text_output": lambda: texts_tensor("text_output", (result.text,)),
        "language": lambda: texts_tensor("language", (result.finish.language,)),
        "segments": lambda: texts_tensor("segments", [each.text for each in segments]),
        "segment_seconds": lambda: _times("segment_seconds", segments),
        "words": lambda: texts_tensor("words", [word.text for word in words]),
        "word_seconds": lambda: _times("word_seconds", words),
    }


def _times(name: str, parts: Sequence[Segment | Word]) -> OutputTensor:
    times = [(part.start_seconds, part.end_seconds) for part in parts]
    return numbers_tensor(name, "FP32", times, (len(times), 2))


def _spans(spans: Iterable[tuple[int, int, int]]) -> OutputTensor:
    found = list(spans)
    return numbers_tensor("spans", "INT64", found, (len(found), 3))


def _padded(name: str, rows: Sequence[tuple[int, ...]]) -> OutputTensor:
    """Token ids of shape ``[rows, longest]``; shorter rows end in :data:`PADDING`."""
    ids: npt.NDArray[np.int64] = np.full((len(rows), max(map(len, rows))), PADDING, dtype=np.int64)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = row
    return numbers_tensor(name, "INT64", ids)


_ENCODERS: dict[Task, Callable[[DecodedRequest, Any], Makers]] = {
    Task.GENERATE: _generation,
    Task.TRANSLATE: _generation,
    Task.EMBED: _embed,
    Task.CLASSIFY: _classify,
    Task.TAG: _tag,
    Task.FILL_MASK: _fill_mask,
    Task.ANSWER: _answer,
    Task.RERANK: _rerank,
    Task.CORRECT: _correct,
    Task.SCORE: _score,
    Task.TRANSCRIBE: _transcribe,
}
