"""Shared by the importers of Llama-like decoders: RMS norm, rotary positions, gated feed-forward.

The sizes from a configuration, layers of these sizes, and one table of all weights for a model and
a checkpoint's names.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from export.errors import SourceError
from export.importers.renaming import (
    Rename,
    Transform,
    linear,
    same,
    stack_rows,
    stacked_experts,
)
from export.importers.support import MAX_LAYERS, divide_heads
from export.readers.fields import Fields
from model.config import (
    Activation,
    AttentionConfig,
    EmbeddingConfig,
    ExpertsConfig,
    FeedForwardConfig,
    HeadConfig,
    HeadKind,
    Kind,
    LayerConfig,
    ModelConfig,
    NormConfig,
    NormKind,
    NormOrder,
    StackConfig,
)
from model.mixers import required
from model.position_config import PositionConfig, PositionKind


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
    epsilon: float
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
    ) -> "DecoderSizes":
        """From ``config.json``, with the family's defaults.

        If neither has a ``head_size``, it is the hidden size divided by the number of heads.
        """
        hidden_size = config.positive("hidden_size")
        num_heads = config.positive("num_attention_heads")
        head_size = config.optional_integer("head_dim") or head_size
        return cls(
            origin=config.origin,
            vocabulary_size=config.positive("vocab_size"),
            hidden_size=hidden_size,
            inner_size=config.positive("intermediate_size"),
            num_layers=config.positive("num_hidden_layers", maximum=MAX_LAYERS),
            num_heads=num_heads,
            num_kv_heads=config.positive("num_key_value_heads", num_heads),
            head_size=head_size or divide_heads(config.origin, hidden_size, num_heads),
            epsilon=config.number("rms_norm_eps", epsilon),
            tied=config.flag("tie_word_embeddings", tied),
        )

    @property
    def norm(self) -> NormConfig:
        return NormConfig(kind=NormKind.RMS, epsilon=self.epsilon)

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
        attention: AttentionConfig,
        *,
        activation: Activation = Activation.SILU,
        bias: bool = False,
        norm_order: NormOrder = NormOrder.PRE,
        experts: ExpertsConfig | None = None,
        expert_size: int | None = None,
    ) -> LayerConfig:
        """A layer of ``attention`` and a gated feed-forward.

        Args:
            bias: of the feed-forward.
            expert_size: the inner size of ``experts``, if it differs from the model's.
        """
        if experts is not None and experts.active > experts.count:
            raise SourceError(f"{self.origin}: {experts.active} active of {experts.count} experts")
        return LayerConfig(
            attention=attention,
            feed_forward=FeedForwardConfig(
                inner_size=expert_size or self.inner_size,
                activation=activation,
                gated=True,
                bias=bias,
                experts=experts,
            ),
            norm=self.norm,
            norm_order=norm_order,
        )

    def model(
        self,
        layers: tuple[LayerConfig, ...],
        max_positions: int,
        *,
        embedding_scale: float = 1.0,
        soft_cap: float | None = None,
    ) -> ModelConfig:
        """``soft_cap`` is that of the logits."""
        return ModelConfig(
            kind=Kind.DECODER,
            vocabulary_size=self.vocabulary_size,
            hidden_size=self.hidden_size,
            position=PositionConfig(kind=PositionKind.NONE, max_positions=max_positions),
            embedding=EmbeddingConfig(scale=embedding_scale),
            decoder=StackConfig(layers=layers, final_norm=self.norm),
            head=HeadConfig(kind=HeadKind.LANGUAGE_MODEL, tied=self.tied, soft_cap=soft_cap),
        )


# The checkpoint's names of each of the model's modules; several are packed on the output axis.
# ``{n}`` is the number of a layer.
Names = Mapping[str, tuple[str, ...]]

TARGET = "decoder.layers.{n}"
_SOURCE = "model.layers.{n}"
HUGGING_FACE: Names = {
    "embedding.tokens": ("model.embed_tokens",),
    "decoder.final_norm": ("model.norm",),
    "head.output": ("lm_head",),
    f"{TARGET}.mixer_norm": (f"{_SOURCE}.input_layernorm",),
    f"{TARGET}.mixer.qkv": tuple(f"{_SOURCE}.self_attn.{name}_proj" for name in "qkv"),
    f"{TARGET}.mixer.query_norm": (f"{_SOURCE}.self_attn.q_norm",),
    f"{TARGET}.mixer.key_norm": (f"{_SOURCE}.self_attn.k_norm",),
    f"{TARGET}.mixer.output": (f"{_SOURCE}.self_attn.o_proj",),
    f"{TARGET}.feed_forward_norm": (f"{_SOURCE}.post_attention_layernorm",),
    f"{TARGET}.feed_forward.input": (f"{_SOURCE}.mlp.gate_proj", f"{_SOURCE}.mlp.up_proj"),
    f"{TARGET}.feed_forward.output": (f"{_SOURCE}.mlp.down_proj",),
}
# The modules of a mixture of experts; their names differ between families.
ROUTER = f"{TARGET}.feed_forward.router"
GATES = f"{TARGET}.feed_forward.experts.input"
DOWN = f"{TARGET}.feed_forward.experts.output"
NORM_NAMES = {
    NormOrder.POST: ("mixer_norm", "feed_forward_norm"),
    NormOrder.PRE: ("mixer_norm", "feed_forward_norm"),
    NormOrder.SANDWICH: (
        "mixer_norm.before",
        "mixer_norm.after",
        "feed_forward_norm.before",
        "feed_forward_norm.after",
    ),
}


def experts_table(names: Names, count: int) -> list[Rename]:
    """The weights of a mixture of ``count`` experts; ``{e}`` is the number of an expert."""
    table = linear(ROUTER, *names[ROUTER], bias=False)
    for target, experts in (
        (f"{TARGET}.feed_forward.input", GATES),
        (f"{TARGET}.feed_forward.output", DOWN),
    ):
        sources = [
            f"{name}.weight".replace("{e}", str(expert))
            for expert in range(count)
            for name in names[experts]
        ]
        transform = stacked_experts(len(names[experts]))
        table.append(Rename(f"{target}.weight", tuple(sources), transform))
    return table


def gated_table(
    model: ModelConfig,
    names: Names = HUGGING_FACE,
    *,
    norm: Transform = same,
    qkv: Transform = stack_rows,
) -> list[Rename]:
    """Every weight of ``model`` in a checkpoint that uses ``names``.

    Args:
        norm: the transform of norm weights.
        qkv: the transform of query, key and value weights: ``rows`` of :func:`linear`.
    """

    def vector(module: str, transform: Transform = same) -> Rename:
        (source,) = names[module]
        return Rename(f"{module}.weight", (f"{source}.weight",), transform)

    def matrix(module: str, *, bias: bool, rows: Transform = stack_rows) -> list[Rename]:
        return linear(module, *names[module], bias=bias, rows=rows)

    table = [vector("embedding.tokens"), vector("decoder.final_norm", norm)]
    if not model.head.tied:
        table += matrix("head.output", bias=model.head.bias)
    for index, layer in enumerate(model.decoder.layers if model.decoder else ()):
        attention = layer.attention
        norms = [f"{TARGET}.{name}" for name in NORM_NAMES[layer.norm_order]]
        entries: list[Rename] = []
        if attention is not None:
            if attention.head_norm is not None:
                norms += [f"{TARGET}.mixer.query_norm", f"{TARGET}.mixer.key_norm"]
            entries += matrix(f"{TARGET}.mixer.qkv", bias=attention.input_bias, rows=qkv)
            entries += matrix(f"{TARGET}.mixer.output", bias=attention.output_bias)
        feed_forward = required(layer.feed_forward)
        if feed_forward.experts is None:
            entries += matrix(f"{TARGET}.feed_forward.input", bias=feed_forward.bias)
            entries += matrix(f"{TARGET}.feed_forward.output", bias=feed_forward.bias)
        else:
            entries += experts_table(names, feed_forward.experts.count)
        entries += [vector(name, norm) for name in norms]
        table += [entry.at(index) for entry in entries]
    return table
