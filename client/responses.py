"""Converts responses of all calls except the encoder calls to results."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from client import types
from client.messages import enum_members, read_fields
from protos.triune.v1 import admin_pb2, common_pb2, inference_pb2, models_pb2

ResultT = TypeVar("ResultT", bound=types.Result)

_FINISH_REASONS = enum_members(types.FinishReason, common_pb2.FinishReason)
_KINDS = enum_members(types.ModelKind, models_pb2.ModelKind)
_STATES = enum_members(types.ModelState, models_pb2.ModelState)


def usage(message: common_pb2.Usage) -> types.Usage:
    """Token counts."""
    return read_fields(types.Usage, message)


def timing(message: common_pb2.Timing) -> types.Timing:
    """Durations in seconds."""
    return read_fields(types.Timing, message)


def result(kind: Callable[..., ResultT], message: Any, outputs: Iterable[object]) -> ResultT:
    """A result of type ``kind``, with the fields of every response: model, usage and timing."""
    return kind(
        model=message.model,
        outputs=tuple(outputs),
        usage=usage(message.usage),
        timing=timing(message.timing),
    )


def _logprobs(messages: Iterable[inference_pb2.TokenLogprob]) -> tuple[types.TokenLogprob, ...]:
    return tuple(
        types.TokenLogprob(
            token_id=message.token_id,
            token=message.token,
            logprob=message.logprob,
            top=_logprobs(message.top),
        )
        for message in messages
    )


def _hypothesis(message: inference_pb2.Hypothesis) -> types.Hypothesis:
    return types.Hypothesis(
        text=message.text,
        token_ids=tuple(message.token_ids),
        finish_reason=_FINISH_REASONS.get(message.finish_reason),
        score=message.score if message.HasField("score") else None,
        logprobs=_logprobs(message.logprobs),
        tool_calls=_tool_calls(message),
        reasoning=message.reasoning,
    )


def _tool_calls(message: Any) -> tuple[types.ToolCall, ...]:
    """The calls of a message; none if its type has no such field."""
    calls = getattr(message, "tool_calls", ())
    return tuple(read_fields(types.ToolCall, call) for call in calls)


def _reasoning(message: Any) -> str:
    """The reasoning of a message; empty if its type has no such field."""
    return getattr(message, "reasoning", "")


def attention_matrix(message: inference_pb2.AttentionMatrix, width: int) -> types.AttentionMatrix:
    """Converts a matrix with ``width`` source tokens (columns)."""
    starts = range(0, len(message.weights), width)
    return types.AttentionMatrix(
        layer=message.layer,
        head=message.head,
        weights=tuple(tuple(message.weights[start : start + width]) for start in starts),
    )


def _attention(message: inference_pb2.Attention) -> types.Attention:
    width = len(message.source_tokens)
    return types.Attention(
        source_tokens=tuple(message.source_tokens),
        target_tokens=tuple(message.target_tokens),
        matrices=tuple(attention_matrix(matrix, width) for matrix in message.matrices),
        alignments=tuple(read_fields(types.Alignment, each) for each in message.alignments),
    )


def _text(message: inference_pb2.GeneratedOutput) -> types.Text:
    return types.Text(
        text=message.text,
        token_ids=tuple(message.token_ids),
        finish_reason=_FINISH_REASONS.get(message.finish_reason),
        score=message.score if message.HasField("score") else None,
        logprobs=_logprobs(message.logprobs),
        usage=usage(message.usage),
        prompt_logprobs=_logprobs(message.prompt_logprobs),
        hypotheses=tuple(map(_hypothesis, message.hypotheses)),
        attention=_attention(message.attention) if message.HasField("attention") else None,
        tool_calls=_tool_calls(message),
        reasoning=_reasoning(message),
    )


def text_result(
    message: inference_pb2.GenerateResponse | inference_pb2.TranslateResponse,
) -> types.TextResult:
    """The response of ``Generate`` or ``Translate``."""
    return result(types.TextResult, message, map(_text, message.outputs))


def piece(
    message: inference_pb2.GenerateStreamResponse | inference_pb2.TranslateStreamResponse,
) -> types.Piece:
    """One response of ``GenerateStream`` or ``TranslateStream``."""
    return types.Piece(
        model=message.model,
        index=message.index,
        text=message.text,
        token_ids=tuple(message.token_ids),
        finish_reason=_FINISH_REASONS.get(message.finish_reason),
        usage=usage(message.usage) if message.HasField("usage") else None,
        timing=timing(message.timing) if message.HasField("timing") else None,
        hypothesis=message.hypothesis,
        logprobs=_logprobs(message.logprobs),
        score=message.score if message.HasField("score") else None,
        prompt_logprobs=_logprobs(message.prompt_logprobs),
        attention=_attention(message.attention) if message.HasField("attention") else None,
        tool_calls=_tool_calls(message),
        reasoning=_reasoning(message),
    )


def score(message: inference_pb2.ScoreResponse) -> types.ScoreResult:
    """The response of ``Score``."""
    return result(types.ScoreResult, message, map(_scored, message.outputs))


def _scored(message: inference_pb2.ScoredOutput) -> types.Scored:
    return types.Scored(
        score=message.score,
        num_tokens=message.num_tokens,
        logprobs=_logprobs(message.logprobs),
        usage=usage(message.usage),
    )


def tokenize(message: inference_pb2.TokenizeResponse) -> types.TokenizeResult:
    """The response of ``Tokenize``."""
    outputs = (
        types.Tokenization(token_ids=tuple(output.token_ids), tokens=tuple(output.tokens))
        for output in message.outputs
    )
    return result(types.TokenizeResult, message, outputs)


def _embedding_info(message: models_pb2.EmbeddingInfo) -> types.EmbeddingInfo:
    return types.EmbeddingInfo(
        size=message.size,
        is_normalized=message.is_normalized,
        pooling=message.pooling,
        truncations=tuple(message.truncations),
        prompts=dict(message.prompts),
        default_prompt=message.default_prompt,
        kind=message.kind or "dense",
        query_length=message.query_length,
        document_length=message.document_length,
        kinds=tuple(message.kinds),
        token_vector_size=message.token_vector_size,
    )


def _parity(message: models_pb2.Parity) -> types.Parity:
    fidelity = _fidelity(message.fidelity) if message.HasField("fidelity") else None
    return read_fields(types.Parity, message, fidelity=fidelity)


def _fidelity(message: models_pb2.Fidelity) -> types.Fidelity:
    present = {field.name for field, _ in message.ListFields()}
    optional = (field.name for field in message.DESCRIPTOR.fields if field.has_presence)
    unset = {name: None for name in optional if name not in present}
    exceeded = tuple(message.exceeded_limits)
    others = {
        kind: read_fields(types.VectorFidelity, figures)
        for kind, figures in message.other_vectors.items()
    }
    return read_fields(
        types.Fidelity, message, exceeded_limits=exceeded, other_vectors=others, **unset
    )


def _model(message: models_pb2.Model) -> types.Model:
    return types.Model(
        name=message.name,
        version=message.version,
        state=_STATES.get(message.state),
        failure=message.failure,
        kind=_KINDS.get(message.kind),
        tasks=tuple(message.tasks),
        architecture=message.architecture,
        precision=message.precision,
        license=message.license,
        parameters=message.parameters,
        vocabulary_size=message.vocabulary_size,
        hidden_size=message.hidden_size,
        max_length=message.max_length,
        source_language=message.source_language,
        target_language=message.target_language,
        languages=tuple(message.languages),
        labels=tuple(message.labels),
        has_chat_template=message.has_chat_template,
        parity=_parity(message.parity) if message.HasField("parity") else None,
        slots=message.slots,
        mask_token=message.mask_token,
        embedding=_embedding_info(message.embedding) if message.HasField("embedding") else None,
        kv_cache=message.kv_cache,
        cache_bytes_per_token=message.cache_bytes_per_token,
        native_kernels=tuple(message.native_kernels),
        quality=tuple(_quality(measured) for measured in message.quality),
        memory=read_fields(types.MemoryInfo, message.memory)
        if message.HasField("memory")
        else None,
        kernel_nodes=tuple(_kernel_nodes(nodes) for nodes in message.kernel_nodes),
        image=read_fields(types.ImageInfo, message.image) if message.HasField("image") else None,
        audio=read_fields(types.AudioInfo, message.audio) if message.HasField("audio") else None,
        max_source_length=message.max_source_length,
        base_model=message.base_model,
        adapters=tuple(message.adapters),
    )


def _kernel_nodes(message: models_pb2.KernelNodes) -> types.KernelNodes:
    return types.KernelNodes(
        graph=message.graph,
        num_native=dict(sorted(message.num_native.items())),
        num_standard=dict(sorted(message.num_standard.items())),
    )


def _quality(message: models_pb2.Quality) -> types.Quality:
    metrics, fp32_metrics = dict(message.metrics), dict(message.fp32_metrics)
    return read_fields(types.Quality, message, metrics=metrics, fp32_metrics=fp32_metrics)


def model(message: models_pb2.GetModelResponse | admin_pb2.LoadModelResponse) -> types.Model:
    """The response of ``GetModel`` or ``LoadModel``."""
    return _model(message.model)


def models(message: models_pb2.ListModelsResponse) -> tuple[types.Model, ...]:
    """The response of ``ListModels``."""
    return tuple(_model(row) for row in message.models)
