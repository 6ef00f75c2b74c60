"""Decoders of Llama's kind: RMS norms, rotary positions, a gated feed-forward.

What their importers share: the shape that a configuration gives, layers made of it, and one
table of all weights, which follows from the model and from what a checkpoint calls them.
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
        SourceError: they do not go together.
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
        """From ``config.json``, with defaults of the family.

        Without a ``head_size`` of either, the heads divide the hidden size.
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
        """A layer of ``attention`` and a gated feed-forward, which may have a ``bias``.

        ``expert_size`` is the inner size of ``experts``, where it is one of their own.
        """
        if experts is not None and experts.active > experts.count:
            raise SourceError(f"{self.origin}: {experts.active} of {experts.count} experts")
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


# What a checkpoint calls the modules of a model: ours to theirs, packed on the output axis where
# there are several. Those of a layer have ``{n}`` for its number.
Names = Mapping[str, tuple[str, ...]]

OURS = "decoder.layers.{n}"
_THEIRS = "model.layers.{n}"
HUGGING_FACE: Names = {
    "embedding.tokens": ("model.embed_tokens",),
    "decoder.final_norm": ("model.norm",),
    "head.output": ("lm_head",),
    f"{OURS}.mixer_norm": (f"{_THEIRS}.input_layernorm",),
    f"{OURS}.mixer.qkv": tuple(f"{_THEIRS}.self_attn.{name}_proj" for name in "qkv"),
    f"{OURS}.mixer.query_norm": (f"{_THEIRS}.self_attn.q_norm",),
    f"{OURS}.mixer.key_norm": (f"{_THEIRS}.self_attn.k_norm",),
    f"{OURS}.mixer.output": (f"{_THEIRS}.self_attn.o_proj",),
    f"{OURS}.feed_forward_norm": (f"{_THEIRS}.post_attention_layernorm",),
    f"{OURS}.feed_forward.input": (f"{_THEIRS}.mlp.gate_proj", f"{_THEIRS}.mlp.up_proj"),
    f"{OURS}.feed_forward.output": (f"{_THEIRS}.mlp.down_proj",),
}
# Those of a mixture of experts, which differ between families.
ROUTER = f"{OURS}.feed_forward.router"
GATES = f"{OURS}.feed_forward.experts.input"
DOWN = f"{OURS}.feed_forward.experts.output"
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
    """The weights of a mixture of ``count`` experts; names have ``{e}`` for an expert's number."""
    table = linear(ROUTER, *names[ROUTER], bias=False)
    for ours, experts in (
        (f"{OURS}.feed_forward.input", GATES),
        (f"{OURS}.feed_forward.output", DOWN),
    ):
        sources = [
            f"{name}.weight".replace("{e}", str(expert))
            for expert in range(count)
            for name in names[experts]
        ]
        transform = stacked_experts(len(names[experts]))
        table.append(Rename(f"{ours}.weight", tuple(sources), transform))
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
        norm: what becomes of the weight of a norm.
        qkv: what becomes of the weights of queries, keys and values, as :func:`linear` has it.
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
        norms = [f"{OURS}.{name}" for name in NORM_NAMES[layer.norm_order]]
        entries: list[Rename] = []
        if attention is not None:
            if attention.head_norm is not None:
                norms += [f"{OURS}.mixer.query_norm", f"{OURS}.mixer.key_norm"]
            entries += matrix(f"{OURS}.mixer.qkv", bias=attention.input_bias, rows=qkv)
            entries += matrix(f"{OURS}.mixer.output", bias=attention.output_bias)
        feed_forward = required(layer.feed_forward)
        if feed_forward.experts is None:
            entries += matrix(f"{OURS}.feed_forward.input", bias=feed_forward.bias)
            entries += matrix(f"{OURS}.feed_forward.output", bias=feed_forward.bias)
        else:
            entries += experts_table(names, feed_forward.experts.count)
        entries += [vector(name, norm) for name in norms]
        table += [entry.at(index) for entry in entries]
    return table
