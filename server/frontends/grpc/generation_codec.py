"""Encodes results of Generate, Translate, Attend, Score and Tokenize; decodes grammars."""

from collections.abc import Iterable
from typing import Any, TypeVar

from protos.triune.v1 import common_pb2
from protos.triune.v1 import inference_pb2 as pb
from server.frontends.grpc import codec
from server.frontends.grpc.common_codec import timing, usage
from server.frontends.grpc.encoder_codec import reading
from server.service.attend import AttendResult
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
    response = kind(model=result.model, usage=usage(result.usage), timing=timing(result.timing))
    for output in result.outputs:
        _add_output(response.outputs.add(), output)
    return response


def chunk_response(chunk: TextChunk, kind: type[ChunkResponse]) -> ChunkResponse:
    """One message of GenerateStream or TranslateStream. Runs once per token: a hot path."""
    message = kind(
        model=chunk.model,
        index=chunk.index,
        hypothesis=chunk.hypothesis,
        text=chunk.text,
        token_ids=chunk.token_ids,
    )
    if chunk.logprobs:
        _add_tokens(message.logprobs, chunk.logprobs)
    if chunk.tool_calls or chunk.reasoning:
        _add_chat_parts(message, chunk)
    finish = chunk.finish
    if finish is not None:
        message.finish_reason = _FINISH_REASONS[finish.reason]
        message.usage.CopyFrom(usage(finish.usage))
        message.timing.CopyFrom(timing(finish.timing))
        _add_tokens(message.prompt_logprobs, finish.prompt_logprobs)
        if finish.score is not None:
            message.score = finish.score
        if finish.attention is not None:
            _add_attention(message.attention, finish.attention)
    return message


def attend_response(result: AttendResult) -> pb.AttendResponse:
    """The response to Attend."""
    response = pb.AttendResponse(
        model=result.model, usage=usage(result.usage), timing=timing(result.timing)
    )
    for output in result.outputs:
        message = response.outputs.add(
            tokens=[span.token for span in output.tokens],
            starts=[span.start for span in output.tokens],
            ends=[span.end for span in output.tokens],
            texts=[span.text for span in output.tokens],
            usage=usage(output.usage),
            reading=reading(output.truncation),
        )
        _add_matrices(message.matrices, output.matrices)
    return response


def score_response(result: ScoreResult) -> pb.ScoreResponse:
    """The response to Score."""
    response = pb.ScoreResponse(
        model=result.model, usage=usage(result.usage), timing=timing(result.timing)
    )
    for output in result.outputs:
        message = response.outputs.add(
            score=output.score, num_tokens=output.num_tokens, usage=usage(output.usage)
        )
        _add_tokens(message.logprobs, output.logprobs)
    return response


def tokenize_response(result: TokenizeResult) -> pb.TokenizeResponse:
    """The response to Tokenize."""
    response = pb.TokenizeResponse(
        model=result.model, usage=usage(result.usage), timing=timing(result.timing)
    )
    for output in result.outputs:
        _add_tokenization(response.outputs.add(), output)
    return response


def _add_tokenization(message: pb.Tokenization, output: Tokenization) -> None:
    # In pieces, because each call holds the interpreter lock.
    for start in range(0, len(output.token_ids), _PIECE):
        message.token_ids.extend(output.token_ids[start : start + _PIECE])
        message.tokens.extend(output.tokens[start : start + _PIECE])


def _add_output(message: pb.GeneratedOutput, output: GeneratedOutput) -> None:
    """Fills ``message`` with the best hypothesis, and with all of them if there are several."""
    best = output.hypotheses[0]
    finish = best.finish
    message.text = best.text
    message.token_ids.extend(best.token_ids)
    message.finish_reason = _FINISH_REASONS[finish.reason]
    message.usage.CopyFrom(usage(output.usage))
    if finish.score is not None:
        message.score = finish.score
    _add_tokens(message.logprobs, best.logprobs)
    _add_tokens(message.prompt_logprobs, finish.prompt_logprobs)
    if finish.attention is not None:
        _add_attention(message.attention, finish.attention)
    _add_chat_parts(message, best)
    for hypothesis in output.hypotheses if output.has_several else ():
        added = message.hypotheses.add(
            text=hypothesis.text,
            token_ids=hypothesis.token_ids,
            finish_reason=_FINISH_REASONS[hypothesis.finish.reason],
            score=hypothesis.finish.score,
        )
        _add_tokens(added.logprobs, hypothesis.logprobs)
        _add_chat_parts(added, hypothesis)


def _add_chat_parts(message: Any, given: TextChunk | Hypothesis) -> None:
    """Adds what only answers of chats have."""
    for call in given.tool_calls:
        message.tool_calls.add(id=call.id, name=call.name, arguments=call.arguments)
    if given.reasoning:
        message.reasoning = given.reasoning


def _add_tokens(messages: Any, tokens: Iterable[ScoredToken]) -> None:
    """Adds tokens in place: a constructor would copy them while it holds the interpreter lock."""
    for token in tokens:
        message = messages.add(token_id=token.token_id, token=token.token, logprob=token.logprob)
        for other in token.top:
            message.top.add(token_id=other.token_id, token=other.token, logprob=other.logprob)


def _add_attention(message: pb.Attention, attention: Attention) -> None:
    message.source_tokens.extend(attention.source_tokens)
    message.target_tokens.extend(attention.target_tokens)
    _add_matrices(message.matrices, attention.matrices)
    for part in attention.alignments:
        message.alignments.add(
            source_start=part.source_start,
            source_end=part.source_end,
            target_start=part.target_start,
            target_end=part.target_end,
        )


def _add_matrices(messages: Any, matrices: Iterable[AttentionMatrix]) -> None:
    for matrix in matrices:
        weights = messages.add(layer=matrix.layer, head=matrix.head).weights
        for row in matrix.weights:
            weights.extend(row.tolist())
