"""Heads of sizes that ONNX Runtime's attention does not take, filled up with zeros.

``GroupQueryAttention`` wants multiples of 8 dimensions, and of 16 where they turn. More zeros in
queries, keys and values change no score and no value, if the scale stays and if pairs that turn
together stay together; the output matrix gets rows of zeros.
"""

import dataclasses
from collections.abc import Callable

import msgspec
import torch
from torch import Tensor

from export.checkpoint import Checkpoint
from model.config import AttentionConfig, LayerConfig, NormConfig, NormKind, StackConfig

STEP, ROTARY_STEP = 8, 16

Weights = dict[str, Tensor]


def padded_heads(checkpoint: Checkpoint) -> Checkpoint:
    """A checkpoint that computes the same, with heads of sizes that the operators take.

    Head norms that subtract a mean are left as they are.
    """
    config, weights = checkpoint.config, dict(checkpoint.weights)
    stacks = {
        name: _padded_stack(f"{name}.layers", stack, weights)
        for name, stack in (("encoder", config.encoder), ("decoder", config.decoder))
        if stack is not None
    }
    if all(stack is getattr(config, name) for name, stack in stacks.items()):
        return checkpoint
    return dataclasses.replace(
        checkpoint, config=msgspec.structs.replace(config, **stacks), weights=weights
    )


def _padded_stack(name: str, stack: StackConfig, weights: Weights) -> StackConfig:
    layers = tuple(
        _padded_layer(f"{name}.{index}", layer, weights) for index, layer in enumerate(stack.layers)
    )
    return stack if layers == stack.layers else msgspec.structs.replace(stack, layers=layers)


def _padded_layer(name: str, layer: LayerConfig, weights: Weights) -> LayerConfig:
    changes = {}
    for field, attention, pad in (
        ("attention", layer.attention, _pad_self_attention),
        ("cross_attention", layer.cross_attention, _pad_cross_attention),
    ):
        if attention is not None and _size(attention) != attention.head_size:
            changes[field] = _padded(attention)
            pad(name, attention, weights)
    return msgspec.structs.replace(layer, **changes)


def _size(attention: AttentionConfig) -> int:
    """The size that heads get."""
    norm = attention.head_norm
    if norm is not None and norm.kind != NormKind.RMS:
        return attention.head_size
    step = STEP if attention.rotary is None else ROTARY_STEP
    return -(-attention.head_size // step) * step


def _padded(attention: AttentionConfig) -> AttentionConfig:
    old, new = attention.head_size, _size(attention)
    rotary, norm = attention.rotary, attention.head_norm
    if rotary is not None:
        rotary = msgspec.structs.replace(rotary, size=rotary.size or old)
    if norm is not None:
        # The mean is over more dimensions: old / new of what it was.
        norm = NormConfig(kind=norm.kind, epsilon=norm.epsilon * old / new)
    return msgspec.structs.replace(
        attention,
        head_size=new,
        scale=old**-0.5 if attention.scale is None else attention.scale,
        rotary=rotary,
        head_norm=norm,
    )


def _pad_self_attention(name: str, attention: AttentionConfig, weights: Weights) -> None:
    spread = _spreader(attention)
    packed = attention.num_heads + 2 * attention.num_kv_heads
    _change(weights, f"{name}.mixer.qkv", lambda x: spread(x, packed))
    _change_rows(weights, f"{name}.mixer.output.weight", attention)
    for term in attention.disentangled.terms if attention.disentangled is not None else ():
        table = f"{name}.mixer.content_bias.{term}"
        weights[table] = spread(weights[table], attention.num_heads)
    global_tokens = f"{name}.mixer.global_tokens"
    _change(weights, f"{global_tokens}.query", lambda x: spread(x, attention.num_heads))
    _change(weights, f"{global_tokens}.key_value", lambda x: spread(x, 2 * attention.num_kv_heads))
    shrink = (attention.head_size / _size(attention)) ** 0.5
    for norm in ("query_norm", "key_norm"):
        _change(weights, f"{name}.mixer.{norm}", lambda x: spread(x, 1) * shrink)


def _pad_cross_attention(name: str, attention: AttentionConfig, weights: Weights) -> None:
    spread, name = _spreader(attention), f"{name}.cross_attention"
    _change(weights, f"{name}.query", lambda x: spread(x, attention.num_heads))
    _change(weights, f"{name}.key_value", lambda x: spread(x, 2 * attention.num_kv_heads))
    _change_rows(weights, f"{name}.output.weight", attention)


def _spreader(attention: AttentionConfig) -> Callable[[Tensor, int], Tensor]:
    """Spreads ``[..., heads * old]`` to ``[..., heads * new]``, each half of a head by itself."""
    old, new = attention.head_size, _size(attention)
    places = torch.arange(old)
    places[old // 2 :] += new // 2 - old // 2

    def spread(x: Tensor, num_heads: int) -> Tensor:
        heads = x.reshape(*x.shape[:-1], num_heads, old)
        padded = heads.new_zeros(*heads.shape[:-1], new)
        padded[..., places] = heads
        return padded.flatten(-2, -1)

    return spread


def _change(weights: Weights, module: str, change: Callable[[Tensor], Tensor]) -> None:
    for name in (f"{module}.weight", f"{module}.bias"):
        if name in weights:
            weights[name] = change(weights[name])


def _change_rows(weights: Weights, name: str, attention: AttentionConfig) -> None:
    spread = _spreader(attention)
    weights[name] = spread(weights[name].T, attention.num_heads).T.contiguous()
