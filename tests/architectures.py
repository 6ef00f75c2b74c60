"""Small random models of every architecture that the tests use."""

from typing import Any

import msgspec
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from export.checkpoint import Checkpoint
from model import initialise
from model.bundle import Embedding, EmbeddingKind, MultiVector, SpecialTokens, Task
from model.config import (
    Activation,
    AttentionConfig,
    DenseConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    HeadConfig,
    HeadKind,
    Kind,
    LayerConfig,
    MixerKind,
    ModelConfig,
    NormConfig,
    NormKind,
    NormOrder,
    PoolingKind,
    StackConfig,
)
from model.position_config import (
    PositionConfig,
    PositionKind,
    RelativeBiasConfig,
    RelativeBiasKind,
    RotaryConfig,
)
from model.recurrent_config import (
    AlignmentConfig,
    AlignmentKind,
    BridgeKind,
    CellKind,
    ReadoutKind,
    RecurrentConfig,
)

VOCABULARY_SIZE = 61
HIDDEN_SIZE = 64


NORM = NormConfig(kind=NormKind.LAYER, epsilon=1e-5)


BUCKETS = RelativeBiasConfig(kind=RelativeBiasKind.BUCKETS, num_buckets=8, max_distance=12)


def attention(
    num_kv_heads: int = 4,
    *,
    bias: bool = True,
    rotary: RotaryConfig | None = None,
    scale: float | None = None,
    relative: RelativeBiasConfig | None = None,
) -> AttentionConfig:
    return AttentionConfig(
        num_heads=4,
        num_kv_heads=num_kv_heads,
        head_size=16,
        input_bias=bias,
        output_bias=bias,
        rotary=rotary,
        scale=scale,
        bias=relative,
    )


def stack(
    *,
    mixer: MixerKind = MixerKind.ATTENTION,
    cross: bool = False,
    norm: NormKind = NormKind.LAYER,
    order: NormOrder = NormOrder.POST,
    activation: Activation = Activation.RELU,
    num_kv_heads: int = 4,
    bias: bool = True,
    rotary: RotaryConfig | None = None,
    scale: float | None = None,
    relative: RelativeBiasConfig | None = None,
) -> StackConfig:
    self_attention = attention(
        num_kv_heads, bias=bias, rotary=rotary, scale=scale, relative=relative
    )
    layer = LayerConfig(
        mixer=mixer,
        attention=self_attention if mixer == MixerKind.ATTENTION else None,
        cross_attention=attention(bias=bias, scale=scale) if cross else None,
        feed_forward=FeedForwardConfig(
            inner_size=96, activation=activation, gated=activation == Activation.SILU, bias=bias
        ),
        norm=NormConfig(kind=norm, epsilon=1e-5),
        norm_order=order,
    )
    final_norm = layer.norm if order == NormOrder.PRE else None
    return StackConfig(layers=(layer,) * 2, final_norm=final_norm)


def _positions(kind: PositionKind) -> PositionConfig:
    return PositionConfig(kind=kind, max_positions=96)


LLAMA = ModelConfig(
    kind=Kind.DECODER,
    vocabulary_size=VOCABULARY_SIZE,
    hidden_size=HIDDEN_SIZE,
    position=_positions(PositionKind.NONE),
    embedding=EmbeddingConfig(),
    decoder=stack(
        norm=NormKind.RMS,
        order=NormOrder.PRE,
        activation=Activation.SILU,
        num_kv_heads=2,
        bias=False,
        rotary=RotaryConfig(),
    ),
    head=HeadConfig(kind=HeadKind.LANGUAGE_MODEL, tied=True),
)
GPT = ModelConfig(
    kind=Kind.DECODER,
    vocabulary_size=VOCABULARY_SIZE,
    hidden_size=HIDDEN_SIZE,
    position=_positions(PositionKind.LEARNED),
    embedding=EmbeddingConfig(),
    decoder=stack(order=NormOrder.PRE, activation=Activation.GELU),
    head=HeadConfig(kind=HeadKind.LANGUAGE_MODEL, tied=False, bias=True),
)
VASWANI = ModelConfig(
    kind=Kind.ENCODER_DECODER,
    vocabulary_size=VOCABULARY_SIZE,
    hidden_size=HIDDEN_SIZE,
    position=_positions(PositionKind.SINUSOIDAL),
    embedding=EmbeddingConfig(scale=HIDDEN_SIZE**0.5),
    encoder=stack(),
    decoder=stack(cross=True),
    head=HeadConfig(kind=HeadKind.LANGUAGE_MODEL, tied=True),
)
SSRU = ModelConfig(
    kind=Kind.ENCODER_DECODER,
    vocabulary_size=VOCABULARY_SIZE,
    hidden_size=HIDDEN_SIZE,
    position=_positions(PositionKind.SINUSOIDAL),
    embedding=EmbeddingConfig(scale=HIDDEN_SIZE**0.5),
    encoder=stack(),
    decoder=stack(mixer=MixerKind.SSRU, cross=True),
    head=HeadConfig(kind=HeadKind.LANGUAGE_MODEL, tied=True, bias=True),
)
BERT = ModelConfig(
    kind=Kind.ENCODER,
    vocabulary_size=VOCABULARY_SIZE,
    hidden_size=HIDDEN_SIZE,
    position=_positions(PositionKind.LEARNED),
    embedding=EmbeddingConfig(norm=NORM, num_segments=2),
    encoder=stack(activation=Activation.GELU),
    head=HeadConfig(kind=HeadKind.EMBEDDING, pooling=PoolingKind.MEAN, normalize=True),
)
# Like ALBERT: one layer applied twice, and factorized embeddings.
CLASSIFIER = ModelConfig(
    kind=Kind.ENCODER,
    vocabulary_size=VOCABULARY_SIZE,
    hidden_size=HIDDEN_SIZE,
    position=_positions(PositionKind.LEARNED),
    embedding=EmbeddingConfig(norm=NORM, size=24),
    encoder=StackConfig(layers=stack(activation=Activation.GELU).layers[:1], order=(0, 0)),
    head=HeadConfig(
        kind=HeadKind.CLASSIFICATION,
        pooling=PoolingKind.CLS,
        dense=(DenseConfig(size=HIDDEN_SIZE, activation=Activation.TANH),),
        bias=True,
        num_labels=3,
    ),
)
_MODERN = stack(
    norm=NormKind.RMS,
    order=NormOrder.PRE,
    activation=Activation.SILU,
    num_kv_heads=2,
    bias=False,
    rotary=RotaryConfig(),
)
# No norm before the first layer's attention; a window of two tokens on each side in the second.
_MODERN_STACK = StackConfig(
    layers=(
        msgspec.structs.replace(
            _MODERN.layers[0], mixer_norm=NormConfig(kind=NormKind.NONE, epsilon=0.0)
        ),
        msgspec.structs.replace(
            _MODERN.layers[1],
            attention=msgspec.structs.replace(
                attention(2, bias=False, rotary=RotaryConfig(base=500.0)), window=3
            ),
        ),
    ),
    final_norm=_MODERN.final_norm,
)
MODERN_BERT = ModelConfig(
    kind=Kind.ENCODER,
    vocabulary_size=VOCABULARY_SIZE,
    hidden_size=HIDDEN_SIZE,
    position=_positions(PositionKind.NONE),
    embedding=EmbeddingConfig(norm=NormConfig(kind=NormKind.LAYER, epsilon=1e-5, bias=False)),
    encoder=_MODERN_STACK,
    head=HeadConfig(kind=HeadKind.EMBEDDING, pooling=PoolingKind.CLS, normalize=False),
)
SPLADE = msgspec.structs.replace(
    BERT,
    head=HeadConfig(
        kind=HeadKind.SPARSE_EMBEDDING,
        tied=True,
        bias=True,
        dense=(DenseConfig(size=HIDDEN_SIZE, activation=Activation.GELU, norm=NORM),),
    ),
)
# In its windows, some tokens that nobody attends to see no token.
COLBERT = msgspec.structs.replace(
    MODERN_BERT,
    encoder=msgspec.structs.replace(_MODERN_STACK, has_unattended=True),
    head=HeadConfig(
        kind=HeadKind.MULTI_VECTOR_EMBEDDING,
        normalize=True,
        dense=(DenseConfig(size=32, bias=False),),
    ),
)


def longformer(num_global_tokens: int, global_before: int | None = None) -> ModelConfig:
    """Longformer (Beltagy et al. 2020) with windows of 6 tokens on each side."""
    layer = stack(activation=Activation.GELU).layers[0]
    windowed = msgspec.structs.replace(
        layer,
        attention=msgspec.structs.replace(
            attention(), window=7, num_global_tokens=num_global_tokens
        ),
    )
    return msgspec.structs.replace(
        BERT, encoder=StackConfig(layers=(windowed,) * 2, global_before=global_before)
    )


T5 = ModelConfig(
    kind=Kind.ENCODER_DECODER,
    vocabulary_size=VOCABULARY_SIZE,
    hidden_size=HIDDEN_SIZE,
    position=_positions(PositionKind.NONE),
    embedding=EmbeddingConfig(),
    encoder=stack(norm=NormKind.RMS, order=NormOrder.PRE, bias=False, scale=1.0, relative=BUCKETS),
    decoder=stack(
        norm=NormKind.RMS, order=NormOrder.PRE, bias=False, scale=1.0, relative=BUCKETS, cross=True
    ),
    head=HeadConfig(kind=HeadKind.LANGUAGE_MODEL, tied=False),
)
# Different layers: a sliding window with soft-capped scores, then a relative position bias.
MIXED_LAYERS = msgspec.structs.replace(
    LLAMA,
    decoder=StackConfig(
        layers=tuple(
            msgspec.structs.replace(layer, attention=self_attention)
            for layer, self_attention in zip(
                stack(norm=NormKind.RMS, order=NormOrder.PRE).layers,
                (
                    msgspec.structs.replace(
                        attention(2, rotary=RotaryConfig(base=500.0)),
                        window=3,
                        soft_cap=2.0,
                        scale=0.4,
                    ),
                    attention(4, relative=BUCKETS),
                ),
                strict=True,
            )
        )
    ),
)


def recurrent_model(hidden_size: int = HIDDEN_SIZE, **options: Any) -> ModelConfig:
    """A recurrent encoder-decoder with states of ``HIDDEN_SIZE``."""
    config = RecurrentConfig(decoder_size=HIDDEN_SIZE, **options)
    return ModelConfig(
        kind=Kind.ENCODER_DECODER,
        vocabulary_size=VOCABULARY_SIZE,
        hidden_size=hidden_size,
        position=_positions(PositionKind.NONE),
        embedding=EmbeddingConfig(size=24),
        recurrent=config,
        head=HeadConfig(kind=HeadKind.LANGUAGE_MODEL, bias=True),
    )


# Cho et al. 2014, Sutskever et al. 2014: a fixed context.
GRU_FIXED = recurrent_model(cell=CellKind.GRU, encoder_size=HIDDEN_SIZE, readout=False)
# Bahdanau et al. 2015.
GRU_ADDITIVE = recurrent_model(
    cell=CellKind.GRU,
    encoder_size=20,
    bidirectional=True,
    bridge=BridgeKind.DENSE,
    alignment=AlignmentConfig(kind=AlignmentKind.ADDITIVE, size=28, from_previous=True),
)
# Luong et al. 2015, with input feeding.
LSTM_DOT = recurrent_model(
    cell=CellKind.LSTM,
    encoder_size=HIDDEN_SIZE,
    num_encoder_layers=2,
    num_decoder_layers=2,
    alignment=AlignmentConfig(kind=AlignmentKind.DOT),
    input_feeding=True,
)
# The same score with a matrix, over a bidirectional encoder; the context is not read out.
LSTM_GENERAL = recurrent_model(
    2 * HIDDEN_SIZE,
    cell=CellKind.LSTM,
    encoder_size=40,
    num_encoder_layers=2,
    bidirectional=True,
    bridge=BridgeKind.ZERO,
    source_size=HIDDEN_SIZE,
    alignment=AlignmentConfig(kind=AlignmentKind.GENERAL),
    readout=False,
    input_feeding=True,
)
# The same as GRU_ADDITIVE with the readout of the paper.
GRU_MAXOUT = recurrent_model(
    cell=CellKind.GRU,
    encoder_size=20,
    bidirectional=True,
    bridge=BridgeKind.DENSE,
    alignment=AlignmentConfig(kind=AlignmentKind.ADDITIVE, size=28, from_previous=True),
    readout_kind=ReadoutKind.MAXOUT,
)
RECURRENT = {
    "gru-fixed": GRU_FIXED,
    "gru-additive": GRU_ADDITIVE,
    "gru-maxout": GRU_MAXOUT,
    "lstm-dot": LSTM_DOT,
    "lstm-general": LSTM_GENERAL,
}
ARCHITECTURES = {
    "llama": LLAMA,
    "mixed-layers": MIXED_LAYERS,
    "gpt": GPT,
    "vaswani": VASWANI,
    "ssru": SSRU,
    "t5": T5,
    "bert": BERT,
    "classifier": CLASSIFIER,
    "modern-bert": MODERN_BERT,
    "splade": SPLADE,
    "colbert": COLBERT,
    **RECURRENT,
}


EMBEDDINGS = {
    "splade": Embedding(kind=EmbeddingKind.SPARSE, size=VOCABULARY_SIZE, is_normalized=False),
    "colbert": Embedding(
        kind=EmbeddingKind.MULTI_VECTOR,
        size=32,
        is_normalized=True,
        multi_vector=MultiVector(
            query_marker=2,
            document_marker=3,
            query_length=12,
            document_length=20,
            has_end_token=False,
            filler=4,
            skipped=(13, 14),
        ),
    ),
}


def tokenizer_json() -> str:
    """One token per printable character, up to VOCABULARY_SIZE."""
    vocabulary = {chr(33 + index): index for index in range(VOCABULARY_SIZE)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="!"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return tokenizer.to_str()


def random_weights(config: ModelConfig, seed: int = 0) -> dict[str, torch.Tensor]:
    weights = initialise.random_weights(config, seed)
    # Random norms and biases too: ones and zeros would hide mistakes.
    generator = torch.Generator().manual_seed(seed)
    return {
        name: w + 0.1 * torch.randn(w.shape, generator=generator) if w.ndim == 1 else w
        for name, w in weights.items()
    }


def checkpoint(name: str, seed: int = 0) -> Checkpoint:
    config = ARCHITECTURES[name]
    tasks = {
        Kind.DECODER: Task.GENERATE,
        Kind.ENCODER_DECODER: Task.TRANSLATE,
        Kind.ENCODER: Task.CLASSIFY if config.head.kind == HeadKind.CLASSIFICATION else Task.EMBED,
    }
    return Checkpoint(
        config=config,
        weights=random_weights(config, seed),
        tokenizer_json=tokenizer_json(),
        architecture=name,
        tasks=(tasks[config.kind],),
        special_tokens=SpecialTokens(
            eos=(1,), decoder_start=0 if config.kind == Kind.ENCODER_DECODER else None
        ),
        license="Apache-2.0",
        name=f"random-{name}",
        labels=tuple("abc") if config.head.kind == HeadKind.CLASSIFICATION else (),
        embedding=EMBEDDINGS.get(name),
        sample_inputs=("HELLO", "A?", "WHAT+IS-THIS"),
    )
