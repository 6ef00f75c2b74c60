"""From the wire's responses to the client's values."""

from collections.abc import Iterable

from client import types
from protos.triune.v1 import admin_pb2, common_pb2, inference_pb2, models_pb2

_FINISH_REASONS = {
    common_pb2.FINISH_REASON_STOP: types.FinishReason.STOP,
    common_pb2.FINISH_REASON_LENGTH: types.FinishReason.LENGTH,
    common_pb2.FINISH_REASON_STOP_STRING: types.FinishReason.STOP_STRING,
    common_pb2.FINISH_REASON_DEADLINE: types.FinishReason.DEADLINE,
    common_pb2.FINISH_REASON_CANCELLED: types.FinishReason.CANCELLED,
}
_KINDS = {
    models_pb2.MODEL_KIND_ENCODER: types.ModelKind.ENCODER,
    models_pb2.MODEL_KIND_DECODER: types.ModelKind.DECODER,
    models_pb2.MODEL_KIND_ENCODER_DECODER: types.ModelKind.ENCODER_DECODER,
}
_STATES = {
    models_pb2.MODEL_STATE_READY: types.ModelState.READY,
    models_pb2.MODEL_STATE_REFUSED: types.ModelState.REFUSED,
    models_pb2.MODEL_STATE_LOADING: types.ModelState.LOADING,
    models_pb2.MODEL_STATE_UNLOADING: types.ModelState.UNLOADING,
}


def usage(message: common_pb2.Usage) -> types.Usage:
    """Token counts."""
    return types.Usage(
        input_tokens=message.input_tokens,
        output_tokens=message.output_tokens,
        reused_tokens=message.reused_tokens,
    )


def timing(message: common_pb2.Timing) -> types.Timing:
    """Durations, in seconds."""
    return types.Timing(
        queue_seconds=message.queue_seconds,
        tokenize_seconds=message.tokenize_seconds,
        prefill_seconds=message.prefill_seconds,
        decode_seconds=message.decode_seconds,
        total_seconds=message.total_seconds,
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
    )


def _attention(message: inference_pb2.Attention) -> types.Attention:
    width = len(message.source_tokens)
    return types.Attention(
        source_tokens=tuple(message.source_tokens),
        target_tokens=tuple(message.target_tokens),
        matrices=tuple(
            types.AttentionMatrix(
                layer=matrix.layer,
                head=matrix.head,
                weights=tuple(
                    tuple(matrix.weights[start : start + width])
                    for start in range(0, len(matrix.weights), width)
                ),
            )
            for matrix in message.matrices
        ),
        alignments=tuple(
            types.Alignment(row.source_start, row.source_end, row.target_start, row.target_end)
            for row in message.alignments
        ),
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
    )


def text_result(
    message: inference_pb2.GenerateResponse | inference_pb2.TranslateResponse,
) -> types.TextResult:
    """What ``Generate`` and ``Translate`` answer."""
    return types.TextResult(
        model=message.model,
        outputs=tuple(_text(output) for output in message.outputs),
        usage=usage(message.usage),
        timing=timing(message.timing),
    )


def piece(
    message: inference_pb2.GenerateStreamResponse | inference_pb2.TranslateStreamResponse,
) -> types.Piece:
    """What ``GenerateStream`` and ``TranslateStream`` send."""
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
    )


def score(message: inference_pb2.ScoreResponse) -> types.ScoreResult:
    """What ``Score`` answers."""
    return types.ScoreResult(
        model=message.model,
        outputs=tuple(
            types.Scored(
                score=output.score,
                num_tokens=output.num_tokens,
                logprobs=_logprobs(output.logprobs),
                usage=usage(output.usage),
            )
            for output in message.outputs
        ),
        usage=usage(message.usage),
        timing=timing(message.timing),
    )


def tokenize(message: inference_pb2.TokenizeResponse) -> types.TokenizeResult:
    """What ``Tokenize`` answers."""
    return types.TokenizeResult(
        model=message.model,
        outputs=tuple(
            types.Tokenization(token_ids=tuple(output.token_ids), tokens=tuple(output.tokens))
            for output in message.outputs
        ),
        usage=usage(message.usage),
        timing=timing(message.timing),
    )


def _parity(message: models_pb2.Parity) -> types.Parity:
    return types.Parity(
        max_absolute_error=message.max_absolute_error,
        greedy_tokens_compared=message.greedy_tokens_compared,
        greedy_tokens_equal=message.greedy_tokens_equal,
        min_cosine=message.min_cosine,
        perplexity=message.perplexity,
        fp32_perplexity=message.fp32_perplexity,
        evaluation_tokens=message.evaluation_tokens,
        float_cache_perplexity=message.float_cache_perplexity,
    )


def _embedding_info(message: models_pb2.EmbeddingInfo) -> types.EmbeddingInfo:
    return types.EmbeddingInfo(
        size=message.size,
        is_normalized=message.is_normalized,
        pooling=message.pooling,
        truncations=tuple(message.truncations),
        prompts=dict(message.prompts),
        default_prompt=message.default_prompt,
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
    )


def model(message: models_pb2.GetModelResponse | admin_pb2.LoadModelResponse) -> types.Model:
    """What ``GetModel`` and ``LoadModel`` answer."""
    return _model(message.model)


def models(message: models_pb2.ListModelsResponse) -> tuple[types.Model, ...]:
    """What ``ListModels`` answers."""
    return tuple(_model(row) for row in message.models)
