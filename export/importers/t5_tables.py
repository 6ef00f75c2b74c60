"""T5's layers (Raffel et al. 2020) and their weights, as ``transformers`` names them."""

import msgspec

from export.errors import UnsupportedError
from export.importers.activations import ACTIVATIONS
from export.importers.renaming import Rename, linear, per_layer, stacked_experts
from export.importers.support import MAX_LAYERS
from export.readers.fields import Fields
from export.supported import lookup
from model.config import (
    AttentionConfig,
    FeedForwardConfig,
    LayerConfig,
    NormConfig,
    NormKind,
    NormOrder,
    StackConfig,
)
from model.mixers import required
from model.position_config import (
    PositionConfig,
    PositionKind,
    RelativeBiasConfig,
    RelativeBiasKind,
)

# Relative positions have no limit; the models were trained on texts of this length.
MAX_POSITIONS = 512
TOKENS = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
# The first checkpoints have this bias, which no version uses.
UNUSED = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"


def positions(config: Fields) -> PositionConfig:
    """No absolute positions."""
    return PositionConfig(
        kind=PositionKind.NONE, max_positions=config.positive("n_positions", MAX_POSITIONS)
    )


def encoder_stack(config: Fields) -> StackConfig:
    """The encoder.

    Raises:
        SourceError, UnsupportedError: see :mod:`export.errors`.
    """
    norm = NormConfig(kind=NormKind.RMS, epsilon=config.number("layer_norm_epsilon", 1e-6))
    attention = AttentionConfig(
        num_heads=config.positive("num_heads"),
        num_kv_heads=config.positive("num_heads"),
        head_size=config.positive("d_kv"),
        input_bias=False,
        output_bias=False,
        scale=1.0,
        bias=_bias(config),
    )
    layer = LayerConfig(
        attention=attention, feed_forward=_feed_forward(config), norm=norm, norm_order=NormOrder.PRE
    )
    number = config.positive("num_layers", maximum=MAX_LAYERS)
    return StackConfig(layers=with_biases(config, layer, number), final_norm=norm)


def decoder_stack(config: Fields, encoder: StackConfig) -> StackConfig:
    """The decoder, whose layers are those of ``encoder`` with cross-attention."""
    layer = encoder.layers[0]
    cross = msgspec.structs.replace(required(layer.attention), bias=None)
    layer = msgspec.structs.replace(layer, cross_attention=cross)
    number = config.positive("num_decoder_layers", len(encoder.layers), maximum=MAX_LAYERS)
    return StackConfig(layers=with_biases(config, layer, number), final_norm=encoder.final_norm)


def with_biases(config: Fields, layer: LayerConfig, number: int) -> tuple[LayerConfig, ...]:
    """``number`` layers: in umT5, each has its own relative bias; otherwise, they share one."""
    is_umt5 = config.text("model_type", "t5") == "umt5"
    return tuple(_in_group(layer, index if is_umt5 else 0) for index in range(number))


def _in_group(layer: LayerConfig, group: int) -> LayerConfig:
    """``layer`` with the relative bias of ``group``."""
    attention = required(layer.attention)
    bias = attention.bias and msgspec.structs.replace(attention.bias, group=group)
    return msgspec.structs.replace(layer, attention=msgspec.structs.replace(attention, bias=bias))


def _bias(config: Fields) -> RelativeBiasConfig:
    num_buckets = config.positive("relative_attention_num_buckets", 32)
    max_distance = config.positive("relative_attention_max_distance", 128)
    if num_buckets % 2 or num_buckets < 4 or max_distance <= num_buckets // 2:
        raise UnsupportedError(
            f"{config.origin}: relative_attention_num_buckets {num_buckets} with "
            f"relative_attention_max_distance {max_distance} is not supported; supported: an even "
            "number of 4 or more, and a distance of more than half of it"
        )
    return RelativeBiasConfig(
        kind=RelativeBiasKind.BUCKETS, num_buckets=num_buckets, max_distance=max_distance
    )


def _feed_forward(config: Fields) -> FeedForwardConfig:
    """The feed-forward from ``feed_forward_proj``: an activation, prefixed ``gated-`` if gated.

    ``dense_act_fn`` and ``is_gated_act``, which transformers saves too, take precedence.
    """
    is_t5 = config.text("model_type", "t5") == "t5"
    name = config.text("feed_forward_proj", "relu" if is_t5 else "gated-gelu")
    field, activation = "feed_forward_proj", name.removeprefix("gated-")
    if name == "gated-gelu":  # in T5, "gelu" means the tanh approximation
        activation = "gelu_new"
    if config.get("dense_act_fn") is not None:
        field, activation = "dense_act_fn", config.text("dense_act_fn")
    return FeedForwardConfig(
        inner_size=config.positive("d_ff"),
        activation=lookup(ACTIVATIONS, activation, f"{config.origin}: {field}"),
        gated=config.flag("is_gated_act", name.startswith("gated-")),
        bias=False,
    )


def stack_table(
    side: str, stack: StackConfig | None, feed_forward: str = "DenseReluDense"
) -> list[Rename]:
    """Every weight of a stack except its final norm.

    Args:
        feed_forward: the checkpoint's name of feed-forwards.
    """
    if stack is None:
        return []
    bias = Rename(
        f"{side}.positions.biases.{{n}}.weight",
        (f"{side}.block.{{n}}.layer.0.SelfAttention.relative_attention_bias.weight",),
    )
    num_biases = len({required(layer.attention).bias for layer in stack.layers})
    layers = (
        entry.at(index)
        for index, layer in enumerate(stack.layers)
        for entry in _layer_table(side, layer, feed_forward)
    )
    return [*layers, *per_layer([bias], num_biases)]


def _layer_table(side: str, layer: LayerConfig, feed_forward: str) -> list[Rename]:
    target, source = f"{side}.layers.{{n}}", f"{side}.block.{{n}}.layer"
    last = 1 if layer.cross_attention is None else 2
    attention, dense = f"{source}.0.SelfAttention", f"{source}.{last}.{feed_forward}"
    table = [
        *linear(f"{target}.mixer.qkv", *(f"{attention}.{letter}" for letter in "qkv"), bias=False),
        *linear(f"{target}.mixer.output", f"{attention}.o", bias=False),
        Rename(f"{target}.mixer_norm.weight", (f"{source}.0.layer_norm.weight",)),
        *_feed_forward_table(f"{target}.feed_forward", dense, required(layer.feed_forward)),
        Rename(f"{target}.feed_forward_norm.weight", (f"{source}.{last}.layer_norm.weight",)),
    ]
    if layer.cross_attention is not None:
        name, cross = f"{target}.cross_attention", f"{source}.1.EncDecAttention"
        table += [
            *linear(f"{name}.query", f"{cross}.q", bias=False),
            *linear(f"{name}.key_value", f"{cross}.k", f"{cross}.v", bias=False),
            *linear(f"{name}.output", f"{cross}.o", bias=False),
            Rename(f"{name}_norm.weight", (f"{source}.1.layer_norm.weight",)),
        ]
    return table


def _feed_forward_table(target: str, source: str, config: FeedForwardConfig) -> list[Rename]:
    if config.experts is None:
        inner = ("wi_0", "wi_1") if config.gated else ("wi",)
        return [
            *linear(f"{target}.input", *(f"{source}.{name}" for name in inner), bias=False),
            *linear(f"{target}.output", f"{source}.wo", bias=False),
        ]
    experts = [f"{source}.experts.expert_{index}" for index in range(config.experts.count)]
    router = f"{source}.router.classifier"
    return [
        *linear(f"{target}.router", router, bias=config.experts.router_bias),
        *(
            Rename(
                f"{target}.{part}.weight",
                tuple(f"{expert}.{name}.weight" for expert in experts),
                stacked_experts(1),
            )
            for part, name in (("input", "wi"), ("output", "wo"))
        ),
    ]
