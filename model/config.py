"""What a Transformer is made of, as frozen values. Imports no torch.

One value per axis of the literature: each ``StrEnum`` names the entries of the
table in ``model/`` that implements it.
"""

from enum import StrEnum

import msgspec


class Kind(StrEnum):
    """The assembly (Vaswani et al. 2017 is the encoder-decoder)."""

    ENCODER = "encoder"
    DECODER = "decoder"
    ENCODER_DECODER = "encoder_decoder"


class PositionKind(StrEnum):
    """What is added to a token's embedding to say where it stands."""

    NONE = "none"  # attention may still know: see AttentionConfig
    # [sin | cos] halves; frequencies fall geometrically from 1 ...
    SINUSOIDAL = "sinusoidal"  # to 1 / 10,000, as in tensor2tensor and fairseq
    SINUSOIDAL_PAPER = "sinusoidal_paper"  # towards it: Vaswani et al. 2017, section 3.5
    LEARNED = "learned"  # Gehring et al. 2017; BERT


class RelativeBiasKind(StrEnum):
    """What attention adds to the score of a query and a key, by how far apart they stand."""

    BUCKETS = "buckets"  # Raffel et al. 2020 (T5), section 2.1
    LINEAR = "linear"  # Press et al. 2021 (ALiBi)


class SignalKind(StrEnum):
    """What tells a layer that is applied several times which time it is."""

    NONE = "none"
    SINUSOIDAL = "sinusoidal"  # Dehghani et al. 2018, equation 4


class NormKind(StrEnum):
    NONE = "none"
    LAYER = "layer_norm"  # Ba et al. 2016
    RMS = "rms_norm"  # Zhang and Sennrich 2019


class NormOrder(StrEnum):
    """Where a block normalises: ``LN(x + f(x))``, ``x + f(LN(x))`` or ``x + LN'(f(LN(x)))``."""

    POST = "post"
    PRE = "pre"
    SANDWICH = "sandwich"  # Ding et al. 2021, CogView; Gemma 2


class Branches(StrEnum):
    """What the feed-forward reads: the sum that the mixer left, or what the mixer read."""

    SEQUENTIAL = "sequential"
    PARALLEL = "parallel"  # Wang and Komatsuzaki 2021, GPT-J


class Activation(StrEnum):
    RELU = "relu"
    GELU = "gelu"  # Hendrycks and Gimpel 2016, exact (erf)
    GELU_TANH = "gelu_tanh"  # the same paper's approximation; GPT-2
    SILU = "silu"  # gated, it is SwiGLU (Shazeer 2020)
    TANH = "tanh"  # BERT's pooler


class MixerKind(StrEnum):
    """How a decoder layer mixes a token with the tokens before it."""

    ATTENTION = "attention"
    SSRU = "ssru"  # Kim et al. 2019, "From Research to Production and Back"


class DistanceKind(StrEnum):
    """Which distances share a row of a table."""

    CLIPPED = "clipped"  # Shaw et al. 2018
    LOGARITHMIC = "logarithmic"  # He et al. 2021 (DeBERTa v2)


class DisentangledTerm(StrEnum):
    """He et al. 2020, equation 2."""

    CONTENT_TO_POSITION = "content_to_position"
    POSITION_TO_CONTENT = "position_to_content"


class PoolingKind(StrEnum):
    """How token vectors become one vector."""

    CLS = "cls"
    MEAN = "mean"
    MEAN_SQRT = "mean_sqrt"  # the sum over the square root of the length
    WEIGHTED_MEAN = "weighted_mean"  # the n-th token counts n times (Muennighoff 2022, SGPT)
    MAX = "max"
    LAST = "last"


class HeadKind(StrEnum):
    EMBEDDING = "embedding"
    CLASSIFICATION = "classification"
    TOKEN_CLASSIFICATION = "token_classification"  # an answer's start and end are two labels
    LANGUAGE_MODEL = "language_model"  # of an encoder: of masked tokens


class _Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class PositionConfig(_Config, frozen=True, kw_only=True):
    """``first``: the position of a sequence's first token, where sinusoids begin."""

    kind: PositionKind
    max_positions: int
    first: int = 0


class LinearScaling(_Config, frozen=True, kw_only=True, tag=True):
    """Positions divided by ``factor`` (Chen et al. 2023)."""

    factor: float


class Llama3Scaling(_Config, frozen=True, kw_only=True, tag=True):
    """Long wavelengths divided by ``factor``, short ones kept (Llama Team 2024).

    A wavelength is long or short by how often it fits into ``original_positions``.
    """

    factor: float
    low_frequency_factor: float
    high_frequency_factor: float
    original_positions: int


class YarnScaling(_Config, frozen=True, kw_only=True, tag=True):
    """YaRN (Peng et al. 2023, section 3.2): a ramp between kept and divided frequencies.

    The ramp runs from the dimension that turns ``fast`` times within ``original_positions``
    to the one that turns ``slow`` times; ``whole`` rounds both outwards.
    """

    factor: float
    original_positions: int
    fast: float = 32.0
    slow: float = 1.0
    whole: bool = True


class ListedScaling(_Config, frozen=True, kw_only=True, tag=True):
    """Each frequency divided by a factor of its own (Ding et al. 2024, LongRoPE)."""

    factors: tuple[float, ...]


RotaryScaling = LinearScaling | Llama3Scaling | YarnScaling | ListedScaling


class RotaryConfig(_Config, frozen=True, kw_only=True):
    """Queries and keys turned by their positions (Su et al. 2021, RoFormer); half-split layout.

    ``size``: how many dimensions of a head turn, in pairs ``(i, i + head_size / 2)`` from
    ``i = 0`` on; all of them unless given. ``magnitude`` multiplies what is turned.
    """

    base: float = 10_000.0
    size: int | None = None
    scaling: RotaryScaling | None = None
    magnitude: float = 1.0


class RelativeBiasConfig(_Config, frozen=True, kw_only=True):
    """A number for each head and distance. Layers whose configurations are equal share it.

    ``num_buckets`` and ``max_distance`` are of :attr:`RelativeBiasKind.BUCKETS`: distances
    from ``max_distance`` on share the last bucket.
    """

    kind: RelativeBiasKind
    num_buckets: int = 0
    max_distance: int = 0


class DisentangledConfig(_Config, frozen=True, kw_only=True):
    """Scores of contents with distances, besides those with each other (He et al. 2020).

    A table has a row for each of ``2 * span`` ranges of distances; from ``max_distance`` on they
    share the last one. :attr:`DisentangledTerm.CONTENT_TO_POSITION` alone, of clipped distances,
    is Shaw et al. 2018 with keys.
    """

    kind: DistanceKind
    span: int
    max_distance: int
    terms: tuple[DisentangledTerm, ...]


class NormConfig(_Config, frozen=True, kw_only=True):
    kind: NormKind
    epsilon: float
    bias: bool = True  # of a layer norm


class AttentionConfig(_Config, frozen=True, kw_only=True):
    """Who attends to whom, and how strongly.

    ``num_kv_heads``: ``num_heads`` is multi-head, 1 multi-query, between grouped-query.
    ``scale`` of the scores is ``head_size ** -0.5`` unless given. ``soft_cap``: scores become
    ``cap * tanh(scores / cap)`` (Gemma 2). ``window``: a token sees itself and the
    ``window - 1`` tokens before it (Mistral; Beltagy et al. 2020), in an encoder also those
    after it. ``head_norm`` normalises each head's query and key, before they are turned (Henry
    et al. 2020; Qwen3). ``bias`` is added to the scaled scores. The first
    ``num_global_tokens`` of an encoder are seen from outside of a window, and see all, through
    matrices of their own (Beltagy et al. 2020, section 3.1).
    """

    num_heads: int
    num_kv_heads: int
    head_size: int
    input_bias: bool
    output_bias: bool
    rotary: RotaryConfig | None = None
    scale: float | None = None
    soft_cap: float | None = None
    window: int | None = None
    head_norm: NormConfig | None = None
    bias: RelativeBiasConfig | None = None
    disentangled: DisentangledConfig | None = None
    num_global_tokens: int = 0


class ExpertsConfig(_Config, frozen=True, kw_only=True):
    """``count`` feed-forwards, of which a token passes the ``active`` best (Shazeer et al. 2017).

    Each is weighted with its probability; with ``normalized``, those of a token sum to 1.
    ``router_bias`` is added to the router's logits.
    """

    count: int
    active: int
    normalized: bool
    router_bias: bool = False


class FeedForwardConfig(_Config, frozen=True, kw_only=True):
    """``inner_size`` is that of one expert, where there are ``experts``."""

    inner_size: int
    activation: Activation
    gated: bool
    bias: bool
    experts: ExpertsConfig | None = None


class LayerConfig(_Config, frozen=True, kw_only=True):
    """Mixer, cross-attention if any, feed-forward.

    Without one of them it is a single block, to be put in any order (Press et al. 2020).
    """

    mixer: MixerKind | None = MixerKind.ATTENTION
    attention: AttentionConfig | None = None  # None where the mixer is recurrent
    cross_attention: AttentionConfig | None = None
    feed_forward: FeedForwardConfig | None
    norm: NormConfig
    norm_order: NormOrder
    mixer_norm: NormConfig | None = None  # where the mixer's is another than ``norm``
    branches: Branches = Branches.SEQUENTIAL


class StackConfig(_Config, frozen=True, kw_only=True):
    """Layers from the input to the output: equal ones, or as any pattern has it.

    ``order``, for layers that are applied more than once with the same weights (ALBERT;
    Dehghani et al. 2018): the index in ``layers`` of each one applied. Without it, each is
    applied once. ``signal`` is added to what each one applied reads.
    """

    layers: tuple[LayerConfig, ...]
    final_norm: NormConfig | None = None
    order: tuple[int, ...] | None = None
    signal: SignalKind = SignalKind.NONE

    @property
    def applied(self) -> tuple[int, ...]:
        """The index in ``layers`` of each layer applied, from the input to the output."""
        return tuple(range(len(self.layers))) if self.order is None else self.order


class EmbeddingConfig(_Config, frozen=True, kw_only=True):
    """How tokens become vectors.

    An encoder and a decoder share the tokens' table. They share the rest as well, unless
    ``separate_target`` gives the decoder positions and a norm of its own (BART).
    """

    scale: float = 1.0  # Vaswani et al. multiply by sqrt(hidden_size)
    norm: NormConfig | None = None  # BERT normalises the sum of its embeddings
    num_segments: int = 0  # BERT's token types
    # Of the embeddings, where a linear map leads from it to the hidden size (Lan et al. 2019).
    size: int | None = None
    separate_target: bool = False


class DenseConfig(_Config, frozen=True, kw_only=True):
    """``norm(activation(x W + b))``: BERT's pooler, its masked language model's transform."""

    size: int
    activation: Activation | None = None
    bias: bool = True
    norm: NormConfig | None = None


class HeadConfig(_Config, frozen=True, kw_only=True):
    """From hidden vectors to outputs; ``dense`` maps stand before the last one, if there is one.

    They follow the pooling of a head that pools.
    """

    kind: HeadKind
    bias: bool = False
    tied: bool = False  # the output matrix is the token embedding
    pooling: PoolingKind | None = None
    normalize: bool = False
    dense: tuple[DenseConfig, ...] = ()
    num_labels: int = 0
    soft_cap: float | None = None  # logits become cap * tanh(logits / cap) (Gemma 2)


class ModelConfig(_Config, frozen=True, kw_only=True):
    """A whole model. Encoder and decoder of one model share the token embedding."""

    kind: Kind
    vocabulary_size: int
    hidden_size: int
    position: PositionConfig
    embedding: EmbeddingConfig
    encoder: StackConfig | None = None
    decoder: StackConfig | None = None
    head: HeadConfig
