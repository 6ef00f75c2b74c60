"""Encodes results of Generate, Translate, Score and Tokenize; decodes grammars."""

from collections.abc import Iterable
from typing import Any, TypeVar

from protos.triune.v1 import common_pb2
from protos.triune.v1 import inference_pb2 as pb
from server.frontends.grpc import codec
from server.frontends.grpc.common_codec import timing, usage
from server.service.generation_options import Grammar, GrammarKind
from server.service.generation_request import (
    Attention,
    AttentionMatrix,
    FinishReason,
    GeneratedOutput,
    GenerationResult,
    Hypothesis,
    ScoredToken,
    TextChunk,
)
from server.service.score import ScoreResult
from server.service.tokenize import Tokenization, TokenizeResult

Response = TypeVar("Response", pb.GenerateResponse, pb.TranslateResponse)
ChunkResponse = TypeVar("ChunkResponse", pb.GenerateStreamResponse, pb.TranslateStreamResponse)

_FINISH_REASONS = {
    reason: common_pb2.FinishReason.Value(f"FINISH_REASON_{reason.name}") for reason in FinishReason
}


_PIECE = 1 << 14


def _read_grammar(message: Any, _: str) -> Grammar | None:
    kind = message.WhichOneof("grammar")
    if kind is None:
        return None
    if kind == "choices":
        return Grammar(GrammarKind.CHOICES, choices=tuple(message.choices.values))
    return Grammar(GrammarKind(kind), getattr(message, kind))


codec.register(Grammar, _read_grammar)


def generation_response(result: GenerationResult, kind: type[Response]) -> Response:
    """The response to Generate or Translate; ``kind`` is its message type."""
    return kind(
        model=result.model,
        outputs=[_output(output) for output in result.outputs],
        usage=usage(result.usage),
        timing=timing(result.timing),
    )


def chunk_response(chunk: TextChunk, kind: type[ChunkResponse]) -> ChunkResponse:
    """One message of GenerateStream or TranslateStream. Runs once per token: a hot path."""
    message = kind(
        model=chunk.model,
        index=chunk.index,
        hypothesis=chunk.hypothesis,
        text=chunk.text,
        token_ids=chunk.token_ids,
        logprobs=_scored_tokens(chunk.logprobs) if chunk.logprobs else (),
    )
    finish = chunk.finish
    if finish is not None:
        message.finish_reason = _FINISH_REASONS[finish.reason]
        message.usage.CopyFrom(usage(finish.usage))
        message.timing.CopyFrom(timing(finish.timing))
        message.prompt_logprobs.extend(_scored_tokens(finish.prompt_logprobs))
        if finish.score is not None:
            message.score = finish.score
        if finish.attention is not None:
            message.attention.CopyFrom(_attention(finish.attention))
    return message


def score_response(result: ScoreResult) -> pb.ScoreResponse:
    """The response to Score."""
    return pb.ScoreResponse(
        model=result.model,
        outputs=[
            pb.ScoredOutput(
                score=output.score,
                num_tokens=output.num_tokens,
                logprobs=_scored_tokens(output.logprobs),
                usage=usage(output.usage),
            )
            for output in result.outputs
        ],
        usage=usage(result.usage),
        timing=timing(result.timing),
    )


def tokenize_response(result: TokenizeResult) -> pb.TokenizeResponse:
    """The response to Tokenize."""
    return pb.TokenizeResponse(
        model=result.model,
        outputs=[_tokenization(output) for output in result.outputs],
        usage=usage(result.usage),
        timing=timing(result.timing),
    )


def _tokenization(output: Tokenization) -> pb.Tokenization:
    message = pb.Tokenization()
    # In pieces: each holds the interpreter.
    for start in range(0, len(output.token_ids), _PIECE):
        message.token_ids.extend(output.token_ids[start : start + _PIECE])
        message.tokens.extend(output.tokens[start : start + _PIECE])
    return message


def _output(output: GeneratedOutput) -> pb.GeneratedOutput:
    """The first hypothesis, and all of them if there are several."""
    texts = [_hypothesis(hypothesis) for hypothesis in output.hypotheses]
    best, finish = texts[0], output.hypotheses[0].finish
    return pb.GeneratedOutput(
        text=best.text,
        token_ids=best.token_ids,
        finish_reason=best.finish_reason,
        usage=usage(output.usage),
        score=finish.score,
        logprobs=best.logprobs,
        prompt_logprobs=_scored_tokens(finish.prompt_logprobs),
        attention=None if finish.attention is None else _attention(finish.attention),
        hypotheses=texts if output.has_several else (),
    )


def _hypothesis(hypothesis: Hypothesis) -> pb.Hypothesis:
    return pb.Hypothesis(
        text=hypothesis.text,
        token_ids=hypothesis.token_ids,
        finish_reason=_FINISH_REASONS[hypothesis.finish.reason],
        score=hypothesis.finish.score,
        logprobs=_scored_tokens(hypothesis.logprobs),
    )


def _scored_tokens(tokens: Iterable[ScoredToken]) -> list[pb.TokenLogprob]:
    return [
        pb.TokenLogprob(
            token_id=token.token_id,
            token=token.token,
            logprob=token.logprob,
            top=_scored_tokens(token.top),
        )
        for token in tokens
    ]


def _attention(attention: Attention) -> pb.Attention:
    return pb.Attention(
        source_tokens=attention.source_tokens,
        target_tokens=attention.target_tokens,
        matrices=[_matrix(matrix) for matrix in attention.matrices],
        alignments=[
            pb.Alignment(
                source_start=part.source_start,
                source_end=part.source_end,
                target_start=part.target_start,
                target_end=part.target_end,
            )
            for part in attention.alignments
        ],
    )


def _matrix(matrix: AttentionMatrix) -> pb.AttentionMatrix:
    message = pb.AttentionMatrix(layer=matrix.layer, head=matrix.head)
    for row in matrix.weights:
        message.weights.extend(row.tolist())
    return message
