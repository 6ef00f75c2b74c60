"""Evens out activations before they are quantised: SmoothQuant (Xiao et al. 2023).

A few channels of a Transformer's activations are far larger than the rest, and an int8
scale for a whole row leaves the rest few steps. Dividing a channel by ``s`` where it is
made and multiplying its row of the next matrix by ``s`` changes nothing but that:
``s_j = max|x_j|^a / max|w_j|^(1 - a)`` (equation 4).

It is done to the weights, in fp32, before the graphs are traced: it costs nothing at run
time, and the fp32 parity check sees its result. Where the residual reads what a matrix reads, as in
post-norm layers, no weight can take the division: an int8 graph does it itself (:func:`divisors`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from model.basics import Linear
from model.config import AttentionConfig, Kind, LayerConfig, ModelConfig, NormKind, NormOrder
from model.kernels import Step
from model.transformer import from_weights

STRENGTH = 0.5  # a
RESIDUAL_STRENGTH = 0.7  # a, where a graph divides
QUIETEST = 0.1  # of the mean channel

RESIDUAL_READERS = (
    "mixer.qkv",
    "mixer.global_tokens.query",
    "mixer.global_tokens.key_value",
    "cross_attention.query",
    "cross_attention.key_value",
    "feed_forward.input",
)

Weights = dict[str, Tensor]


class Ranges:
    """The largest magnitude of each input channel of every linear map, by name."""

    def __init__(self) -> None:
        self.of: Weights = {}

    def see(self, name: str, x: Tensor) -> None:
        """Takes in ``x [..., channels]``."""
        largest = x.detach().flatten(0, -2).abs().amax(0)
        self.of[name] = torch.maximum(self.of.get(name, largest), largest)

    @contextmanager
    def watch(self, model: nn.Module) -> Iterator[None]:
        """Takes in what every linear map of ``model`` is given meanwhile."""
        handles = []
        for name, module in model.named_modules():
            if isinstance(module, Linear):
                handles.append(
                    module.register_forward_pre_hook(
                        lambda _, inputs, name=name: self.see(name, inputs[0])
                    )
                )
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


@dataclass(frozen=True)
class Link:
    """Channels that ``maker`` gives and only ``reader``, a linear map, reads.

    They are outputs ``start`` and on of ``maker``. With ``attention``, they are values, and
    ``reader`` has each once for every query head of its group.
    """

    maker: str
    reader: str
    start: int = 0
    attention: AttentionConfig | None = None


def equalized(config: ModelConfig, weights: Weights, rows: list[list[int]]) -> Weights:
    """Weights that compute the same, with activations evened.

    Args:
        rows: token ids of ordinary text, on which activations are measured.
    """
    result = dict(weights)
    every = list(links(config))
    if every and rows:
        ranges = _measure(config, result, rows)
        for link in every:
            _equalize(result, link, ranges)
    return result


def divisors(config: ModelConfig, weights: Weights, rows: list[list[int]]) -> Weights:
    """By which to divide what matrices read of a residual stream, and to multiply their rows.

    Returns:
        ``[channels]`` by the names of the matrices.
    """
    readers = [
        f"{stack}.layers.{index}.{reader}"
        for stack, layers in (("encoder", config.encoder), ("decoder", config.decoder))
        for index, layer in enumerate(() if layers is None else layers.layers)
        if layer.norm_order == NormOrder.POST
        for reader in RESIDUAL_READERS
    ]
    if not readers or not rows:
        return {}
    ranges = _measure(config, weights, rows)
    return {
        f"{reader}.weight": _scales(
            ranges.of[reader], weights[f"{reader}.weight"].abs().amax(1), RESIDUAL_STRENGTH
        )
        for reader in readers
        if reader in ranges.of and f"{reader}.weight" in weights
    }


def _measure(config: ModelConfig, weights: Weights, rows: list[list[int]]) -> Ranges:
    model, ranges = from_weights(config, weights), Ranges()
    with torch.inference_mode(), ranges.watch(model):
        for row in rows:
            ids, lengths = torch.tensor([row]), torch.tensor([len(row)], dtype=torch.int32)
            source_lengths, states = None, None
            if config.encoder is not None:
                segments = torch.zeros_like(ids) if config.embedding.num_segments else None
                encoded = model.encode(ids, lengths, segments)
            if config.kind == Kind.ENCODER_DECODER:
                source_lengths, states = lengths, model.cross_attention_kv(encoded)
            if config.decoder is not None:
                model.decode(ids, Step.whole(lengths, source_lengths), states)
    return ranges


def links(config: ModelConfig) -> Iterator[Link]:
    """Every place where a scale can move from one weight to the next.

    Not of post-norm layers: there, the residual reads the norm as well.
    """
    for name, stack in (("encoder", config.encoder), ("decoder", config.decoder)):
        for index, layer in enumerate(() if stack is None else stack.layers):
            if layer.norm_order != NormOrder.POST:
                yield from _layer_links(f"{name}.layers.{index}", layer)


def _layer_links(name: str, layer: LayerConfig) -> Iterator[Link]:
    attention = layer.attention
    suffix = ".before" if layer.norm_order == NormOrder.SANDWICH else ""
    # Global tokens read the norm and make values through matrices of their own.
    if attention is not None and not attention.num_global_tokens:
        if (layer.mixer_norm or layer.norm).kind != NormKind.NONE:
            yield Link(f"{name}.mixer_norm{suffix}", f"{name}.mixer.qkv")
        start = (attention.num_heads + attention.num_kv_heads) * attention.head_size
        yield Link(f"{name}.mixer.qkv", f"{name}.mixer.output", start, attention)
    if layer.cross_attention is not None:
        yield Link(f"{name}.cross_attention_norm{suffix}", f"{name}.cross_attention.query")
    if layer.feed_forward is None or layer.feed_forward.experts is not None:
        return
    yield Link(f"{name}.feed_forward_norm{suffix}", f"{name}.feed_forward.input")
    if layer.feed_forward.gated:  # linear in the half that is not activated
        start = layer.feed_forward.inner_size
        yield Link(f"{name}.feed_forward.input", f"{name}.feed_forward.output", start)


def _equalize(weights: Weights, link: Link, ranges: Ranges) -> None:
    matrix = weights[f"{link.reader}.weight"]  # [channels, outputs]
    seen, weight_range = ranges.of[link.reader], matrix.abs().amax(1)
    if link.attention is not None:
        seen, weight_range = (_over_group(x, link.attention) for x in (seen, weight_range))
    scales = _scales(seen, weight_range, STRENGTH)
    stop = link.start + scales.numel()
    for name in (f"{link.maker}.weight", f"{link.maker}.bias"):
        if name in weights:
            weights[name] = weights[name].clone()
            weights[name][..., link.start : stop] /= scales
    if link.attention is not None:
        group = link.attention.num_heads // link.attention.num_kv_heads
        heads = scales.view(link.attention.num_kv_heads, link.attention.head_size)
        scales = heads.repeat_interleave(group, 0).flatten()
    weights[f"{link.reader}.weight"] = matrix * scales[:, None]


def _scales(seen: Tensor, weight_range: Tensor, strength: float) -> Tensor:
    """``s`` of each channel."""
    # A channel that was quiet on the samples may be loud elsewhere.
    seen = seen.clamp(min=QUIETEST * float(seen.mean()))
    weight_range = weight_range.clamp(min=QUIETEST * float(weight_range.mean()))
    return seen**strength / weight_range ** (1 - strength)


def _over_group(x: Tensor, attention: AttentionConfig) -> Tensor:
    """``[heads * head_size]`` to the largest over the query heads of each key-value head."""
    group = attention.num_heads // attention.num_kv_heads
    return x.view(attention.num_kv_heads, group, attention.head_size).amax(1).flatten()
