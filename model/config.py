"""The configuration of a Transformer, as frozen values. Imports no torch.

Each ``StrEnum`` lists the variants of one part; a table in ``model/`` maps them to implementations.
"""

from enum import StrEnum

from msgspec import structs

from model.image_config import PatchConfig
from model.position_config import (
    ConfigStruct,
    DisentangledConfig,
    PositionConfig,
    RelativeBiasConfig,
    RelativePositionConfig,
    RotaryConfig,
    SignalKind,
    SignalTarget,
)
from model.recurrent_config import RecurrentConfig


class Kind(StrEnum):
    """Which stacks a model has; Vaswani et al. 2017 is the encoder-decoder."""

    ENCODER = "encoder"
    DECODER = "decoder"
    ENCODER_DECODER = "encoder_decoder"


class ScoreKind(StrEnum):
    """The attention score of a query and a key, before ``scale``."""

    SCALED_DOT = "scaled_dot"  # Vaswani et al. 2017
    DOT = "dot"  # Luong et al. 2015: not scaled
    BILINEAR = "bilinear"  # the same paper's "general": a matrix for each head, not scaled
    COSINE = "cosine"  # Graves et al. 2014
    ADDITIVE = "additive"  # Bahdanau et al. 2015: two matrices and a vector for each head


# Scores that are linear in the key, so that the vector of a distance can be added to it.
LINEAR_SCORES = (ScoreKind.SCALED_DOT, ScoreKind.DOT, ScoreKind.BILINEAR)


class NormKind(StrEnum):
    NONE = "none"
    LAYER = "layer_norm"  # Ba et al. 2016
    RMS = "rms_norm"  # Zhang and Sennrich 2019


class NormOrder(StrEnum):
    """Where a layer normalises: ``LN(x + f(x))``, ``x + f(LN(x))`` or ``x + LN'(f(LN(x)))``."""

    POST = "post"
    PRE = "pre"
    SANDWICH = "sandwich"  # Ding et al. 2021, CogView; Gemma 2


class Branches(StrEnum):
    """The feed-forward's input: the output of attention, or attention's own input."""

    SEQUENTIAL = "sequential"
    PARALLEL = "parallel"  # Wang and Komatsuzaki 2021, GPT-J


class Activation(StrEnum):
    RELU = "relu"
    GELU = "gelu"  # Hendrycks and Gimpel 2016, exact (erf)
    GELU_TANH = "gelu_tanh"  # the same paper's approximation; GPT-2
    SILU = "silu"  # gated, it is SwiGLU (Shazeer 2020)
    TANH = "tanh"  # BERT's pooler


class MixerKind(StrEnum):
    """How a layer mixes tokens; encoders support attention only."""

    ATTENTION = "attention"
    SSRU = "ssru"  # Kim et al. 2019, "From Research to Production and Back"


class PoolingKind(StrEnum):
    """How token vectors are pooled into one vector."""

    CLS = "cls"
    MEAN = "mean"
    MEAN_SQRT = "mean_sqrt"  # the sum, divided by the square root of the length
    WEIGHTED_MEAN = "weighted_mean"  # the n-th token has weight n (Muennighoff 2022, SGPT)
    MAX = "max"
    LAST = "last"


class HeadKind(StrEnum):
    EMBEDDING = "embedding"
    CLASSIFICATION = "classification"
    TOKEN_CLASSIFICATION = "token_classification"  # question answering: labels start and end
    LANGUAGE_MODEL = "language_model"  # next tokens; in an encoder, masked tokens


class NormConfig(ConfigStruct, frozen=True, kw_only=True):
    kind: NormKind
    epsilon: float
    bias: bool = True  # layer norm only


class AttentionConfig(ConfigStruct, frozen=True, kw_only=True):
    """One attention.

    Attributes:
        num_kv_heads: equal to ``num_heads`` for multi-head, 1 for multi-query, a divisor of it
            for grouped-query attention.
        score: computed after rotation, except for ``BILINEAR``'s matrix and ``COSINE``'s division;
            ``ADDITIVE`` allows neither rotation nor ``soft_cap``.
        scale: multiplies the scores; default ``head_size ** -0.5`` for ``SCALED_DOT``, 1 for the
            others.
        soft_cap: scores become ``cap * tanh(scores / cap)`` (Gemma 2).
        window: a token sees itself and the ``window - 1`` tokens before it (Mistral; Beltagy et
            al. 2020); in an encoder also the ``window - 1`` tokens after it.
        head_norm: normalises each head's query and key before rotation (Henry et al. 2020;
            Qwen3).
        bias: added to the scaled scores.
        relative: vectors of distances, added to keys and values; not with rotation, a ``soft_cap``,
            or ``COSINE`` or ``ADDITIVE`` scores.
        num_global_tokens: number of an encoder's first tokens that see all others and are seen by
            all, beyond the window; at most, if :attr:`StackConfig.global_before` is given. They
            have their own query, key and value matrices (Beltagy et al. 2020, section 3.1).
    """

    num_heads: int
    num_kv_heads: int
    head_size: int
    input_bias: bool
    output_bias: bool
    score: ScoreKind = ScoreKind.SCALED_DOT
    rotary: RotaryConfig | None = None
    scale: float | None = None
    soft_cap: float | None = None
    window: int | None = None
    head_norm: NormConfig | None = None
    bias: RelativeBiasConfig | None = None
    disentangled: DisentangledConfig | None = None
    relative: RelativePositionConfig | None = None
    num_global_tokens: int = 0

    @property
    def with_scale(self) -> "AttentionConfig":
        """This configuration with the scale of its score."""
        if self.scale is not None or self.score == ScoreKind.SCALED_DOT:
            return self
        return structs.replace(self, scale=1.0)


class ExpertsConfig(ConfigStruct, frozen=True, kw_only=True):
    """``count`` feed-forwards; a token goes through its top ``active`` (Shazeer et al. 2017).

    Their outputs are weighted with the router's probabilities, which sum to 1 over the active
    experts if ``normalized``. ``router_bias``: the router has a bias.
    """

    count: int
    active: int
    normalized: bool
    router_bias: bool = False


class FeedForwardConfig(ConfigStruct, frozen=True, kw_only=True):
    """With ``experts``, ``inner_size`` is the inner size of one expert."""

    inner_size: int
    activation: Activation
    gated: bool
    bias: bool
    experts: ExpertsConfig | None = None


class LayerConfig(ConfigStruct, frozen=True, kw_only=True):
    """A mixer, a cross-attention and a feed-forward; each may be absent.

    A layer with one of them is a single sub-layer: stacks of those can have any order (Press et
    al. 2020).
    """

    mixer: MixerKind | None = MixerKind.ATTENTION
    attention: AttentionConfig | None = None  # None where the mixer is recurrent
    cross_attention: AttentionConfig | None = None
    feed_forward: FeedForwardConfig | None
    norm: NormConfig
    norm_order: NormOrder
    mixer_norm: NormConfig | None = None  # overrides ``norm`` for the mixer
    branches: Branches = Branches.SEQUENTIAL


class HaltingConfig(ConfigStruct, frozen=True, kw_only=True):
    """Adaptive computation time (Graves 2016): see :mod:`model.adaptive`.

    A token halts when its halting probabilities sum to ``1 - epsilon``.
    """

    epsilon: float = 0.01


class StackConfig(ConfigStruct, frozen=True, kw_only=True):
    """Layers from the input to the output; they may differ.

    Attributes:
        order: indices into ``layers``, in the order in which they run. A layer may run several
            times (ALBERT; Dehghani et al. 2018). Default: each layer runs once.
        signal: added in every layer.
        signal_targets: the projections of self-attention to whose input it is added, as DETR adds
            positions to queries and keys (Carion et al. 2020). Default: the layer's input.
        halting: each token runs as many layers of ``order`` as it needs.
        global_before: a token id: of an encoder's global tokens, only those before a row's first
            token with this id. With a separator, they are the question (Beltagy et al. 2020,
            section 5).
    """

    layers: tuple[LayerConfig, ...]
    final_norm: NormConfig | None = None
    order: tuple[int, ...] | None = None
    signal: SignalKind = SignalKind.NONE
    signal_targets: tuple[SignalTarget, ...] = ()
    halting: HaltingConfig | None = None
    global_before: int | None = None

    @property
    def applied(self) -> tuple[int, ...]:
        """Indices into ``layers`` in the order in which they run."""
        return tuple(range(len(self.layers))) if self.order is None else self.order


class EmbeddingConfig(ConfigStruct, frozen=True, kw_only=True):
    """The input embedding.

    Encoder and decoder share the token table, and all the rest unless ``separate_target`` is
    set: then the decoder has its own positions and norm (BART).
    """

    scale: float = 1.0  # Vaswani et al. multiply by sqrt(hidden_size)
    norm: NormConfig | None = None  # BERT normalises the sum of its embeddings
    num_segments: int = 0  # BERT's token types
    # If it is not the hidden size, a linear map projects the embeddings (Lan et al. 2019).
    size: int | None = None
    separate_target: bool = False


class DenseConfig(ConfigStruct, frozen=True, kw_only=True):
    """``norm(activation(x W + b))``: BERT's pooler, its masked language model's transform."""

    size: int
    activation: Activation | None = None
    bias: bool = True
    norm: NormConfig | None = None


class HeadConfig(ConfigStruct, frozen=True, kw_only=True):
    """From hidden vectors to outputs: pooling, then ``dense`` layers, then the output matrix."""

    kind: HeadKind
    bias: bool = False
    tied: bool = False  # the output matrix is the token embedding
    pooling: PoolingKind | None = None
    normalize: bool = False
    dense: tuple[DenseConfig, ...] = ()
    num_labels: int = 0
    soft_cap: float | None = None  # logits become cap * tanh(logits / cap) (Gemma 2)


class ModelConfig(ConfigStruct, frozen=True, kw_only=True):
    """A whole model. Encoder and decoder share the token embedding.

    An encoder-decoder has either ``encoder`` and ``decoder``, or ``recurrent``. An encoder with
    ``patches`` reads images; it has no vocabulary.
    """

    kind: Kind
    vocabulary_size: int
    hidden_size: int
    position: PositionConfig
    embedding: EmbeddingConfig
    encoder: StackConfig | None = None
    decoder: StackConfig | None = None
    recurrent: RecurrentConfig | None = None
    patches: PatchConfig | None = None
    head: HeadConfig

    @property
    def num_layers(self) -> int:
        """Of all stacks, as often as they run."""
        if self.recurrent is not None:
            return self.recurrent.num_encoder_layers + self.recurrent.num_decoder_layers
        return sum(len(stack.applied) for stack in (self.encoder, self.decoder) if stack)
