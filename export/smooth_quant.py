"""SmoothQuant (Xiao et al. 2023): moves outliers from activations to weights.

A few channels of a Transformer's activations are far larger than the others, so an int8 scale
for a whole row leaves the others few steps. Dividing a channel by ``s`` where it is computed and
multiplying its row of the next matrix by ``s`` keeps the result and evens out the channels:
``s_j = max|x_j|^a / max|w_j|^(1 - a)`` (equation 4), with the migration strength ``a``.

Scales move into the fp32 weights before the graphs are traced: they cost nothing at run time, and
the fp32 parity check covers them. In post-norm layers the residual connection also reads the
matrix's input, so no weight can absorb the division: an int8 graph divides at run time
(:func:`residual_smoothing_factors`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from export.activations import Samples, observe_inputs
from model.config import (
    AttentionConfig,
    LatentConfig,
    LayerConfig,
    ModelConfig,
    NormKind,
    NormOrder,
    StackConfig,
)

MIGRATION_STRENGTH = 0.5
RESIDUAL_MIGRATION_STRENGTH = 0.7  # if the graph divides at run time
MIN_RELATIVE_RANGE = 0.1  # relative to the mean channel

# Norm orders in which matrices read the residual stream itself, not the output of a norm.
RESIDUAL_ORDERS = (NormOrder.POST, NormOrder.RES_POST)
# The matrices that read the residual stream.
RESIDUAL_CONSUMERS = (
    "mixer.qkv",
    "mixer.global_tokens.query",
    "mixer.global_tokens.key_value",
    "mixer.convolution.value",
    "cross_attention.query",
    "cross_attention.key_value",
    "feed_forward.input",
)

Weights = dict[str, Tensor]


class ActivationRanges:
    """The largest magnitude of each input channel of every linear map, by the map's name."""

    def __init__(self) -> None:
        self.by_name: Weights = {}

    def update(self, name: str, x: Tensor) -> None:
        """Includes ``x [..., channels]``, an input of the linear map ``name``."""
        largest = x.detach().flatten(0, -2).abs().amax(0)
        self.by_name[name] = torch.maximum(self.by_name.get(name, largest), largest)


@dataclass(frozen=True)
class ScaleMigration:
    """Channels that ``producer`` computes and only ``consumer``, a linear map, reads.

    They are the outputs of ``producer`` from ``start`` on. With ``attention``, they are values, and
    ``consumer`` reads each of them once per query head of its group.
    """

    producer: str
    consumer: str
    start: int = 0
    attention: AttentionConfig | None = None


@dataclass(frozen=True)
class ChannelScales:
    """Factors of the inputs, or of the outputs from ``start`` on, of a matrix of this name."""

    matrix: str
    factors: Tensor
    are_inputs: bool
    start: int = 0


def smooth_activations(
    config: ModelConfig,
    weights: Weights,
    rows: Samples,
    on_scaled: Callable[[ChannelScales], None] = lambda _: None,
) -> Weights:
    """Weights of an equivalent model with smooth activations.

    Args:
        rows: token ids of ordinary text, or images, on which activations are measured.
        on_scaled: called with the factors of each matrix, in the order in which they apply.
    """
    result = dict(weights)
    migrations = list(scale_migrations(config))
    if migrations and rows:
        ranges = _measure(config, result, rows)
        for migration in migrations:
            for scales in _migrate(result, migration, ranges):
                on_scaled(scales)
    return result


def residual_smoothing_factors(config: ModelConfig, weights: Weights, rows: Samples) -> Weights:
    """Divisors for matrix inputs that come from the residual stream, as in post-norm layers.

    The graph divides the input by them; the matrix's rows are multiplied by them.

    Returns:
        ``[channels]`` by the matrices' names.
    """
    consumers = [
        f"{stack}.layers.{index}.{consumer}"
        for stack, layers in (("encoder", config.encoder), ("decoder", config.decoder))
        for index, layer in enumerate(() if layers is None else layers.layers)
        if layer.norm_order in RESIDUAL_ORDERS
        for consumer in RESIDUAL_CONSUMERS
    ]
    if not consumers or not rows:
        return {}
    ranges = _measure(config, weights, rows).by_name
    return {
        f"{consumer}.weight": _scales(
            ranges[consumer],
            weights[f"{consumer}.weight"].abs().amax(1),
            RESIDUAL_MIGRATION_STRENGTH,
        )
        for consumer in consumers
        if consumer in ranges and f"{consumer}.weight" in weights
    }


def _measure(config: ModelConfig, weights: Weights, rows: Samples) -> ActivationRanges:
    ranges = ActivationRanges()
    observe_inputs(config, weights, rows, ranges.update)
    return ranges


def scale_migrations(config: ModelConfig) -> Iterator[ScaleMigration]:
    """Every place where a scale can move from one weight to the next.

    Post-norm layers have none: the residual connection reads the norm's output too. The same
    applies to norms in layers that normalize only outputs of sub-layers.
    """
    for name, stack in (("encoder", config.encoder), ("decoder", config.decoder)):
        for index, layer in enumerate(() if stack is None else stack.layers):
            if stack is not None and layer.norm_order != NormOrder.POST:
                yield from _layer_migrations(f"{name}.layers.{index}", layer, stack)
                yield from _convolution_migrations(f"{name}.layers.{index}", layer, config)


def _layer_migrations(
    name: str, layer: LayerConfig, stack: StackConfig
) -> Iterator[ScaleMigration]:
    attention, reads_residual = layer.attention, layer.norm_order in RESIDUAL_ORDERS
    suffix = ".before" if layer.norm_order == NormOrder.SANDWICH else ""
    # Global tokens read the norm too, and compute values with their own matrices.
    if attention is not None and attention.latent is not None:
        yield from _latent_migrations(name, attention, attention.latent)
        if not reads_residual:
            yield ScaleMigration(f"{name}.mixer_norm{suffix}", f"{name}.mixer.qkv.down")
    elif attention is not None and not attention.num_global_tokens:
        norm = layer.mixer_norm or layer.norm
        has_norm = norm.kind != NormKind.NONE and not reads_residual
        # A convolution or a gate reads the norm too.
        has_gate = attention.has_gate or attention.gates_bias
        has_norm &= attention.convolution_size is None and not has_gate
        if has_norm and not stack.signal_targets:  # a signal is added to the norm's output
            yield ScaleMigration(f"{name}.mixer_norm{suffix}", f"{name}.mixer.qkv")
        start = (attention.num_heads + attention.num_kv_heads) * attention.head_size
        # Relative values are added to the projected values, and clipped values are not linear in
        # their weights. Outputs of a convolution follow those of attention.
        has_relative = attention.relative is not None and attention.relative.values
        is_alone = not has_relative and attention.convolution_size is None
        if is_alone and attention.clip is None:
            yield ScaleMigration(f"{name}.mixer.qkv", f"{name}.mixer.output", start, attention)
    if layer.cross_attention is not None and not reads_residual:
        producer = f"{name}.cross_attention_norm{suffix}"
        yield ScaleMigration(producer, f"{name}.cross_attention.query")
    if layer.feed_forward is None or layer.feed_forward.experts is not None:
        return
    if not reads_residual:
        yield ScaleMigration(f"{name}.feed_forward_norm{suffix}", f"{name}.feed_forward.input")
    if layer.feed_forward.gated:  # the output is linear in the half without activation
        start = layer.feed_forward.inner_size
        yield ScaleMigration(f"{name}.feed_forward.input", f"{name}.feed_forward.output", start)


def _latent_migrations(
    name: str, attention: AttentionConfig, latent: LatentConfig
) -> Iterator[ScaleMigration]:
    qkv = f"{name}.mixer.qkv"
    yield ScaleMigration(f"{qkv}.norm", f"{qkv}.up")
    if latent.query_size is not None:
        yield ScaleMigration(f"{qkv}.query_norm", f"{qkv}.query")
    start = attention.num_heads * latent.plain_size
    yield ScaleMigration(f"{qkv}.up", f"{name}.mixer.output", start)


def _convolution_migrations(
    name: str, layer: LayerConfig, config: ModelConfig
) -> Iterator[ScaleMigration]:
    if layer.convolution is None:
        return
    if layer.norm_order not in RESIDUAL_ORDERS:
        suffix = ".before" if layer.norm_order == NormOrder.SANDWICH else ""
        yield ScaleMigration(f"{name}.mixer_norm{suffix}", f"{name}.mixer.input")
    # The output is linear in the second third of the input's map, the gate.
    yield ScaleMigration(f"{name}.mixer.input", f"{name}.mixer.output", config.hidden_size)


def _migrate(
    weights: Weights, migration: ScaleMigration, ranges: ActivationRanges
) -> tuple[ChannelScales, ChannelScales]:
    """Scales weights in place; returns the factors of the producer and of the consumer."""
    matrix = weights[f"{migration.consumer}.weight"]  # [channels, outputs]
    input_range, weight_range = ranges.by_name[migration.consumer], matrix.abs().amax(1)
    if migration.attention is not None:
        input_range, weight_range = (
            _max_over_group(x, migration.attention) for x in (input_range, weight_range)
        )
    scales = _scales(input_range, weight_range, MIGRATION_STRENGTH)
    stop = migration.start + scales.numel()
    for name in (f"{migration.producer}.weight", f"{migration.producer}.bias"):
        if name in weights:
            weights[name] = weights[name].clone()
            weights[name][..., migration.start : stop] /= scales
    producer = ChannelScales(
        f"{migration.producer}.weight", 1 / scales, are_inputs=False, start=migration.start
    )
    if migration.attention is not None:
        group = migration.attention.num_heads // migration.attention.num_kv_heads
        heads = scales.view(migration.attention.num_kv_heads, migration.attention.head_size)
        scales = heads.repeat_interleave(group, 0).flatten()
    weights[f"{migration.consumer}.weight"] = matrix * scales[:, None]
    return producer, ChannelScales(f"{migration.consumer}.weight", scales, are_inputs=True)


def _scales(input_range: Tensor, weight_range: Tensor, strength: float) -> Tensor:
    """The scale ``s`` of each channel."""
    # A channel that is small on the samples may be large on other text.
    input_range = input_range.clamp(min=MIN_RELATIVE_RANGE * float(input_range.mean()))
    weight_range = weight_range.clamp(min=MIN_RELATIVE_RANGE * float(weight_range.mean()))
    return input_range**strength / weight_range ** (1 - strength)


def _max_over_group(x: Tensor, attention: AttentionConfig) -> Tensor:
    """``[heads * head_size]`` to the maximum over the query heads of each key-value head."""
    group = attention.num_heads // attention.num_kv_heads
    return x.view(attention.num_kv_heads, group, attention.head_size).amax(1).flatten()
