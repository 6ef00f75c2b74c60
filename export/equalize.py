"""Evens out activations before they are quantised: SmoothQuant (Xiao et al. 2023).

A few channels of a Transformer's activations are far larger than the rest, and an int8
scale for a whole row leaves the rest few steps. Dividing a channel by ``s`` where it is
made and multiplying its row of the next matrix by ``s`` changes nothing but that:
``s_j = max|x_j|^a / max|w_j|^(1 - a)`` (equation 4).

It is done to the weights, in fp32, before the graphs are traced: it costs nothing at run
time, and the fp32 parity check sees its result.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from model.basics import Linear
from model.config import Activation, AttentionConfig, ModelConfig, NormOrder, StackConfig

STRENGTH = 0.5  # a
SMALLEST = 1e-5

Weights = dict[str, Tensor]
Range = Tensor  # the largest magnitude of each channel


class Ranges:
    """The largest magnitude of each input channel of every linear map, by name."""

    def __init__(self) -> None:
        self.of: dict[str, Range] = {}

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
    """Channels made by columns ``start:start + size`` of ``makers`` and read by ``readers``.

    A maker is a name of a weight; its last dimension is divided. A channel is read
    ``repeats`` times in a row of ``head_size``: by each query head of a group.
    """

    makers: tuple[str, ...]
    readers: tuple[str, ...]
    start: int = 0
    attention: AttentionConfig | None = None


def equalized(config: ModelConfig, weights: Weights, ranges: Ranges) -> Weights:
    """Weights that compute the same, with evened activations."""
    result = dict(weights)
    for link in links(config):
        _equalize(result, link, ranges)
    return result


def links(config: ModelConfig) -> Iterable[Link]:
    """Every place where a scale can move from one weight to the next."""
    for name, stack in (("encoder", config.encoder), ("decoder", config.decoder)):
        if stack is not None:
            for layer in range(stack.num_layers):
                yield from _layer_links(f"{name}.layers.{layer}", stack)


def _layer_links(layer: str, stack: StackConfig) -> Iterator[Link]:
    attention, feed_forward = stack.attention, stack.feed_forward
    if attention is not None:
        start = (attention.num_heads + attention.num_kv_heads) * attention.head_size
        qkv = f"{layer}.mixer.qkv"
        yield Link(_affine(qkv), (f"{layer}.mixer.output",), start, attention)
        if stack.norm.order == NormOrder.PRE:
            yield Link(_affine(f"{layer}.mixer_norm"), (qkv,))
    if feed_forward.gated or feed_forward.activation == Activation.RELU:
        # What is linear in its input: the gated half, or relu (of positive scales).
        start = feed_forward.inner_size if feed_forward.gated else 0
        yield Link(
            _affine(f"{layer}.feed_forward.input"), (f"{layer}.feed_forward.output",), start
        )
    if stack.norm.order == NormOrder.PRE:
        yield Link(
            _affine(f"{layer}.feed_forward_norm"), (f"{layer}.feed_forward.input",)
        )
        if stack.cross_attention is not None:
            yield Link(
                _affine(f"{layer}.cross_attention_norm"), (f"{layer}.cross_attention.query",)
            )


def _affine(name: str) -> tuple[str, ...]:
    return (f"{name}.weight", f"{name}.bias")


def _equalize(weights: Weights, link: Link, ranges: Ranges) -> None:
    (reader,) = link.readers
    matrix = weights[f"{reader}.weight"]  # [channels, outputs]
    seen, weight_range = ranges.of[reader], matrix.abs().amax(1)
    if link.attention is not None:
        seen, weight_range = (_over_group(x, link.attention) for x in (seen, weight_range))
    scales = seen.clamp(min=SMALLEST) ** STRENGTH / weight_range.clamp(min=SMALLEST) ** (
        1 - STRENGTH
    )
    stop = link.start + scales.numel()
    for name in link.makers:
        if name in weights:
            weights[name] = weights[name].clone()
            weights[name][..., link.start : stop] /= scales
    if link.attention is not None:
        group = link.attention.num_heads // link.attention.num_kv_heads
        heads = scales.view(link.attention.num_kv_heads, link.attention.head_size)
        scales = heads.repeat_interleave(group, 0).flatten()
    weights[f"{reader}.weight"] = matrix * scales[:, None]


def _over_group(x: Tensor, attention: AttentionConfig) -> Tensor:
    """``[heads * head_size]`` to the largest over the query heads of each key-value head."""
    group = attention.num_heads // attention.num_kv_heads
    return x.view(attention.num_kv_heads, group, attention.head_size).amax(1).flatten()
