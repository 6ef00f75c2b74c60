"""Shared by the importers of decoders whose weights are described by one table of names.

Sizes from a configuration, layers with these sizes, and one table of all weights for a model and
a checkpoint's names. The defaults are Llama's: RMS norm, rotary positions, gated feed-forward.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from export.errors import SourceError
from export.importers.decoder_names import (
    CHOICE_BIAS,
    DOWN,
    GATES,
    HUGGING_FACE,
    NORM_NAMES,
    ROUTER,
    SHARED_DOWN,
    SHARED_GATE,
    SHARED_GATES,
    TARGET,
    Names,
)
from export.importers.expert_tables import experts_table
from export.importers.norms import rms_norm
from export.importers.renaming import Rename, Transform, linear, same, stack_rows
from export.importers.support import MAX_LAYERS, divide_heads
from export.readers.fields import Fields
from model.config import (
    Activation,
    AttentionConfig,
    Branches,
    EmbeddingConfig,
    ExpertsConfig,
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
    ShortConvolutionConfig,
    StackConfig,
)
from model.mixers import required
from model.position_config import PositionConfig, PositionKind

__all__ = [
    "CHOICE_BIAS",
    "DOWN",
    "GATES",
    "HUGGING_FACE",
    "ROUTER",
    "SHARED_DOWN",
    "SHARED_GATE",
    "SHARED_GATES",
    "TARGET",
    "DecoderSizes",
    "Names",
    "gated_table",
]


@dataclass(frozen=True, kw_only=True)
class DecoderSizes:
    """The sizes of a model.

    Raises:
        SourceError: inconsistent sizes.
    """

    origin: str
    vocabulary_size: int
    hidden_size: int
    inner_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    norm: NormConfig
    tied: bool

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise SourceError(
                f"{self.origin}: {self.num_kv_heads} key-value heads do not divide {self.num_heads}"
            )

    @classmethod
    def of(
        cls,
        config: Fields,
        *,
        epsilon: float = 1e-6,
        tied: bool = False,
        head_size: int | None = None,
        inner_size: int | None = None,
        norm: NormConfig | None = None,
    ) -> "DecoderSizes":
        """From ``config.json``, with the family's defaults.

        If neither has a ``head_size``, it is the hidden size divided by the number of heads.

        Args:
            norm: default: an RMS norm with the configuration's ``rms_norm_eps`` or ``epsilon``.
        """
        hidden_size = config.positive("hidden_size")
        num_heads = config.positive("num_attention_heads")
        head_size = config.optional_integer("head_dim") or head_size
        return cls(
            origin=config.origin,
            vocabulary_size=config.positive("vocab_size"),
            hidden_size=hidden_size,
            inner_size=config.positive("intermediate_size", inner_size),
            num_layers=config.positive("num_hidden_layers", maximum=MAX_LAYERS),
            num_heads=num_heads,
            num_kv_heads=config.positive("num_key_value_heads", num_heads),
            head_size=head_size or divide_heads(config.origin, hidden_size, num_heads),
            norm=norm or rms_norm(config.number("rms_norm_eps", epsilon)),
            tied=config.flag("tie_word_embeddings", tied),
        )

    def attention(self, *, input_bias: bool, output_bias: bool, **more: Any) -> AttentionConfig:
        """``more`` are other fields of :class:`AttentionConfig`."""
        return AttentionConfig(
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_size=self.head_size,
            input_bias=input_bias,
            output_bias=output_bias,
            **more,
        )

    def layer(
        self,
        mixer: AttentionConfig | ShortConvolutionConfig,
        *,
        activation: Activation = Activation.SILU,
        gated: bool = True,
        bias: bool = False,
        norm_order: NormOrder = NormOrder.PRE,
        branches: Branches = Branches.SEQUENTIAL,
        experts: ExpertsConfig | None = None,
        expert_size: int | None = None,
    ) -> LayerConfig:
        """A layer of attention or a convolution, and a feed-forward.

        Args:
            bias: whether the feed-forward has biases.
            expert_size: the inner size of ``experts``, if it differs from the model's.
        """
        if experts is not None and experts.active > experts.count:
            raise SourceError(f"{self.origin}: {experts.active} active of {experts.count} experts")
        attention = mixer if isinstance(mixer, AttentionConfig) else None
        return LayerConfig(
            mixer=MixerKind.SHORT_CONVOLUTION if attention is None else MixerKind.ATTENTION,
            attention=attention,
            convolution=mixer if isinstance(mixer, ShortConvolutionConfig) else None,
            feed_forward=FeedForwardConfig(
                inner_size=expert_size or self.inner_size,
                activation=activation,
                gated=gated,
                bias=bias,
                experts=experts,
            ),
            norm=self.norm,
            norm_order=norm_order,
            branches=branches,
        )

    def model(
        self,
        layers: tuple[LayerConfig, ...],
        max_positions: int,
        *,
        positions: PositionKind = PositionKind.NONE,
        first_position: int = 0,
        embedding_scale: float = 1.0,
        soft_cap: float | None = None,
        head_bias: bool = False,
    ) -> ModelConfig:
        """A model of ``layers``.

        Args:
            positions: absolute positions; the first is ``first_position``.
            soft_cap: for the logits.
            head_bias: whether the output matrix has a bias.
        """
        return ModelConfig(
            kind=Kind.DECODER,
            vocabulary_size=self.vocabulary_size,
            hidden_size=self.hidden_size,
            position=PositionConfig(
                kind=positions, max_positions=max_positions, first=first_position
            ),
            embedding=EmbeddingConfig(scale=embedding_scale),
            decoder=StackConfig(layers=layers, final_norm=self.norm),
            head=HeadConfig(
                kind=HeadKind.LANGUAGE_MODEL,
                tied=self.tied,
                soft_cap=soft_cap,
                bias=head_bias,
            ),
        )


def gated_table(
    model: ModelConfig,
    names: Names = HUGGING_FACE,
    *,
    norm: Transform = same,
    final_norm: Transform | None = None,
    head_norm: Transform | None = None,
    qkv: Transform = stack_rows,
    output: Transform = stack_rows,
    positions: Transform = same,
    experts: Sequence[Rename] | None = None,
    mixer: Sequence[Rename] = (),
) -> list[Rename]:
    """Every weight of ``model`` in a checkpoint that uses ``names``.

    Args:
        norm: the transform of norms' weights.
        final_norm: that of the last norm's weights and biases; default: ``norm`` for its weights.
        head_norm: that of weights and biases of query and key norms; default: ``norm``.
        qkv: that of query, key and value weights: ``rows`` of :func:`linear`.
        output: the same for matrices whose outputs are added to the residual stream.
        positions: that of learned positions.
        experts: the weights of a layer's mixture; default: :func:`experts_table`.
        mixer: the weights of a layer's convolution or latent attention.
    """

    def vector(module: str, transform: Transform = same, name: str = "weight") -> Rename:
        sources = tuple(f"{source}.{name}" for source in names[module])
        return Rename(f"{module}.{name}", sources, transform)

    def normed(
        module: str, config: NormConfig, both: Transform | None = None, *, size: int | None = None
    ) -> list[Rename]:
        if not names[module]:
            return [Rename(f"{module}.weight", (), lambda: torch.ones(size or model.hidden_size))]
        has_bias = config.kind == NormKind.LAYER and config.bias
        biases = [vector(module, both or same, "bias")] if has_bias else []
        return [vector(module, both or norm), *biases]

    def matrix(module: str, *, bias: bool, rows: Transform = stack_rows) -> list[Rename]:
        return linear(module, *names[module], bias=bias, rows=rows)

    table = [vector("embedding.tokens")]
    if model.position.kind == PositionKind.LEARNED:
        table.append(vector("embedding.positions", positions))
    stack = model.decoder or StackConfig(layers=())
    if stack.final_norm is not None:
        table += normed("decoder.final_norm", stack.final_norm, final_norm)
    if not model.head.tied:
        table += matrix("head.output", bias=model.head.bias)
    elif model.head.bias:
        table.append(vector("head.output", name="bias"))
    for index, layer in enumerate(stack.layers):
        attention = layer.attention
        entries: list[Rename] = []
        for name in NORM_NAMES[layer.norm_order]:
            entries += normed(f"{TARGET}.{name}", layer.norm)
        if attention is None or attention.latent is not None:
            entries += mixer
        else:
            if attention.head_norm is not None:
                for name in ("query_norm", "key_norm"):
                    module, size = f"{TARGET}.mixer.{name}", attention.head_size
                    entries += normed(module, attention.head_norm, head_norm, size=size)
            entries += matrix(f"{TARGET}.mixer.qkv", bias=attention.input_bias, rows=qkv)
            bias = attention.output_bias
            entries += matrix(f"{TARGET}.mixer.output", bias=bias, rows=output)
            gate = f"{TARGET}.mixer.gate"
            entries += matrix(gate, bias=False) if attention.has_gate else []
            sinks = f"{TARGET}.mixer.sinks"
            entries += [Rename(sinks, names[sinks])] if attention.has_sinks else []
        feed_forward = required(layer.feed_forward)
        if feed_forward.experts is None:
            bias = feed_forward.bias
            entries += matrix(f"{TARGET}.feed_forward.input", bias=bias)
            entries += matrix(f"{TARGET}.feed_forward.output", bias=bias, rows=output)
        else:
            entries += experts or experts_table(names, feed_forward.experts, output)
        table += [entry.at(index) for entry in entries]
    return table
