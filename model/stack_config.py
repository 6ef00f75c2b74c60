"""The configuration of a stack of layers. Imports no torch."""

from msgspec import structs

from model.bottleneck_config import BottleneckConfig
from model.convolution_config import ShortConvolutionConfig
from model.experts_config import ExpertsConfig
from model.halting_config import HaltingConfig
from model.latent_config import LatentConfig
from model.norm_config import NormConfig
from model.position_config import (
    ConfigStruct,
    DisentangledConfig,
    RelativeBiasConfig,
    RelativePositionConfig,
    RotaryConfig,
    SignalKind,
    SignalTarget,
)
from model.variants import (
    Activation,
    Branches,
    HeadNormScope,
    MixerKind,
    NormOrder,
    ScoreKind,
)


class AttentionConfig(ConfigStruct, frozen=True, kw_only=True):
    """The configuration of one attention.

    Attributes:
        num_kv_heads: ``num_heads`` for multi-head, 1 for multi-query, a divisor of ``num_heads``
            for grouped-query attention.
        score: computed after rotation, except for the matrix of ``BILINEAR`` and the division of
            ``COSINE``; ``ADDITIVE`` allows neither rotation nor ``soft_cap``.
        scale: multiplies the scores; default ``head_size ** -0.5`` for ``SCALED_DOT``, 1 for the
            others.
        soft_cap: scores become ``cap * tanh(scores / cap)`` (Gemma 2).
        window: a token sees itself and the ``window - 1`` tokens before it (Mistral; Beltagy et
            al. 2020); in an encoder that is not causal also the ``window - 1`` tokens after it.
        head_norm: normalizes queries and keys before rotation; ``head_norm_scope`` says whether
            per head or over all heads.
        norm_rotated: ``head_norm`` follows rotation (Hunyuan). Only in decoders.
        clip: clamps queries, keys and values between ``head_norm`` and rotation (MPT, OLMo).
        bias: added to the scaled scores.
        gates_bias: the input scales the bias of each query and head. Only in encoders.
        source_size: in cross-attention, the size of the source's vectors, if it is not the hidden
            size (an image encoder with a smaller or larger decoder).
        relative: vectors per distance, added to keys and values; not with rotation, ``soft_cap``,
            or ``COSINE`` or ``ADDITIVE`` scores.
        has_sinks: each head has a learned score that joins the softmax and has no value (gpt-oss);
            not with global tokens.
        convolution_size: tokens in each kernel of :mod:`model.span_convolution`, odd; only in
            encoders, without global tokens.
        has_gate: each head's output is multiplied by the sigmoid of a linear map of the input.
        latent: how keys and values are computed, if not each by a linear map of the input.
        is_causal: a token of an encoder sees itself and the tokens before it, as in a decoder.
        num_global_tokens: number of an encoder's first tokens that see all others and are seen by
            all, beyond the window; an upper limit if :attr:`StackConfig.global_before` is given.
            They have their own query, key and value matrices (Beltagy et al. 2020, section 3.1).
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
    head_norm_scope: HeadNormScope = HeadNormScope.HEAD
    norm_rotated: bool = False
    clip: float | None = None
    bias: RelativeBiasConfig | None = None
    gates_bias: bool = False
    source_size: int | None = None
    disentangled: DisentangledConfig | None = None
    relative: RelativePositionConfig | None = None
    num_global_tokens: int = 0
    has_sinks: bool = False
    convolution_size: int | None = None
    has_gate: bool = False
    latent: LatentConfig | None = None
    is_causal: bool = False

    @property
    def with_scale(self) -> "AttentionConfig":
        """This configuration with ``scale`` set to the default of its score."""
        if self.scale is not None or self.score == ScoreKind.SCALED_DOT:
            return self
        return structs.replace(self, scale=1.0)


class FeedForwardConfig(ConfigStruct, frozen=True, kw_only=True):
    """With ``experts``, ``inner_size`` is the inner size of one expert."""

    inner_size: int
    activation: Activation
    gated: bool
    bias: bool
    experts: ExpertsConfig | None = None


class LayerConfig(ConfigStruct, frozen=True, kw_only=True):
    """A mixer, a cross-attention and a feed-forward; each may be absent.

    A layer with only one of them is a single sub-layer: a stack can have sub-layers in any order
    (Press et al. 2020).
    """

    mixer: MixerKind | None = MixerKind.ATTENTION
    attention: AttentionConfig | None = None  # None where the mixer is another
    convolution: ShortConvolutionConfig | None = None
    cross_attention: AttentionConfig | None = None
    feed_forward: FeedForwardConfig | None
    bottleneck: BottleneckConfig | None = None
    norm: NormConfig
    norm_order: NormOrder
    mixer_norm: NormConfig | None = None  # overrides ``norm`` for the mixer
    branches: Branches = Branches.SEQUENTIAL


class StackConfig(ConfigStruct, frozen=True, kw_only=True):
    """The layers of a stack, which may differ, and what they share.

    Attributes:
        order: indices into ``layers``, in the order in which they run. A layer may run several
            times (ALBERT; Dehghani et al. 2018). Default: each layer runs once.
        signal: positions that are added in every layer.
        signal_targets: the projections of self-attention to whose input the signal is added, as in
            DETR (Carion et al. 2020), for queries and keys. Default: the layer's input.
        halting: each token runs as many layers of ``order`` as it needs.
        global_before: a token id, such as a separator's. Of an encoder's global tokens, only those
            before the row's first such token count: the question (Beltagy et al. 2020, section 5).
        num_segments: number of token types, if attention compares those of two tokens.
        has_unattended: in an encoder, the last tokens of a row may attend without being attended
            to, as the masks that pad a query in ColBERT (Khattab and Zaharia 2020).
        sums_layers: an encoder returns a weighted sum of its input and the outputs of all layers
            (Yang et al. 2021, SUPERB).
    """

    layers: tuple[LayerConfig, ...]
    final_norm: NormConfig | None = None
    order: tuple[int, ...] | None = None
    signal: SignalKind = SignalKind.NONE
    signal_targets: tuple[SignalTarget, ...] = ()
    halting: HaltingConfig | None = None
    global_before: int | None = None
    num_segments: int = 0
    has_unattended: bool = False
    sums_layers: bool = False

    @property
    def applied(self) -> tuple[int, ...]:
        """Indices into ``layers`` in the order in which they run."""
        return tuple(range(len(self.layers))) if self.order is None else self.order
