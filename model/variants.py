"""The variants of a Transformer's parts. Imports no torch.

Each ``StrEnum`` lists the variants of one part; a table in ``model/`` maps them to implementations.
"""

from enum import StrEnum


class Kind(StrEnum):
    """Which stacks a model has; Vaswani et al. 2017 is the encoder-decoder."""

    ENCODER = "encoder"
    DECODER = "decoder"
    ENCODER_DECODER = "encoder_decoder"


class ScoreKind(StrEnum):
    """The attention score of a query and a key, before ``scale``."""

    SCALED_DOT = "scaled_dot"  # Vaswani et al. 2017
    DOT = "dot"  # Luong et al. 2015: not scaled
    BILINEAR = "bilinear"  # "general" in Luong et al. 2015: a matrix per head, not scaled
    COSINE = "cosine"  # Graves et al. 2014
    ADDITIVE = "additive"  # Bahdanau et al. 2015: two matrices and a vector per head


# Scores that are linear in the key, so that a distance's vector can be added to the key.
LINEAR_SCORES = (ScoreKind.SCALED_DOT, ScoreKind.DOT, ScoreKind.BILINEAR)
# Scores with matrices per head, which cannot be padded with zeros.
MATRIX_SCORES = (ScoreKind.BILINEAR, ScoreKind.ADDITIVE)


class NormKind(StrEnum):
    NONE = "none"
    LAYER = "layer_norm"  # Ba et al. 2016
    RMS = "rms_norm"  # Zhang and Sennrich 2019
    AFFINE = "affine"  # x * weight + bias: Sun et al. 2020, MobileBERT's NoNorm


class NormOrder(StrEnum):
    """Where a layer normalizes around a sub-layer ``f``."""

    POST = "post"  # LN(x + f(x)): Vaswani et al. 2017
    PRE = "pre"  # x + f(LN(x)): Xiong et al. 2020
    SANDWICH = "sandwich"  # x + LN'(f(LN(x))): Ding et al. 2021, CogView; Gemma 2
    RES_POST = "res_post"  # x + LN(f(x)): Liu et al. 2021, Swin Transformer V2; OLMo 2


class HeadNormScope(StrEnum):
    """What the norm of an attention's queries and keys spans, and which weights it has."""

    HEAD = "head"  # each head, with shared weights: Henry et al. 2020; Qwen3
    EACH_HEAD = "each_head"  # each head, with its own weights: StableLM 2
    ALL_HEADS = "all_heads"  # all heads as one vector: OLMo 2


class Branches(StrEnum):
    """The feed-forward's input: the output of attention, or the input of attention."""

    SEQUENTIAL = "sequential"
    PARALLEL = "parallel"  # Wang and Komatsuzaki 2021, GPT-J


class Activation(StrEnum):
    RELU = "relu"
    RELU_SQUARED = "relu_squared"  # So et al. 2021, Primer
    GELU = "gelu"  # Hendrycks and Gimpel 2016, exact (erf)
    GELU_TANH = "gelu_tanh"  # that paper's approximation; GPT-2
    SILU = "silu"  # gated, it is SwiGLU (Shazeer 2020)
    TANH = "tanh"  # BERT's pooler
    XIELU = "xielu"  # Huang and Schlag 2024, with learned slopes; only in feed-forwards


class MixerKind(StrEnum):
    """How a layer mixes tokens; encoders have no SSRU."""

    ATTENTION = "attention"
    SSRU = "ssru"  # Kim et al. 2019, "From Research to Production and Back"
    SHORT_CONVOLUTION = "short_convolution"  # Liquid AI 2025, LFM2


class PoolingKind(StrEnum):
    """How token vectors are pooled into one vector."""

    CLS = "cls"
    MEAN = "mean"
    MEAN_SQRT = "mean_sqrt"  # the sum, divided by the square root of the length
    WEIGHTED_MEAN = "weighted_mean"  # token n has weight n (Muennighoff 2022, SGPT)
    MAX = "max"
    LAST = "last"
    SECOND_LAST = "second_last"  # the end of a text that its language follows (mBART)
    PATCH_MEAN = "patch_mean"  # this and the following are for images: see :mod:`model.pooling`
    CLASS_AND_PATCH_MEAN = "class_and_patch_mean"
    CLASS_TOKENS = "class_tokens"
    CLASS_TOKEN_MEAN = "class_token_mean"
    ATTENTION = "attention"


class HeadKind(StrEnum):
    EMBEDDING = "embedding"
    SPARSE_EMBEDDING = "sparse_embedding"  # Formal et al. 2021, SPLADE
    MULTI_VECTOR_EMBEDDING = "multi_vector_embedding"  # Khattab and Zaharia 2020, ColBERT
    CLASSIFICATION = "classification"
    TOKEN_CLASSIFICATION = "token_classification"  # also question answering: labels start and end
    SPAN_CLASSIFICATION = "span_classification"  # by the request's labels: GLiNER
    LANGUAGE_MODEL = "language_model"  # next tokens; in an encoder, masked tokens
