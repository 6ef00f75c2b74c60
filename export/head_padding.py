"""Pads attention heads with zeros to sizes that ONNX Runtime supports.

``GroupQueryAttention`` needs head sizes that are multiples of 8, or of 16 with rotary positions.
Zeros in queries, keys and values change no score and no output, if the scale is kept and rotary
pairs stay together; the output matrix gets rows of zeros.
"""

import dataclasses
from collections.abc import Callable

import msgspec
import torch
from torch import Tensor

from export.checkpoint import Checkpoint
from model.config import (
    AttentionConfig,
    HeadNormScope,
    LayerConfig,
    NormConfig,
    NormKind,
    StackConfig,
)
from model.fused import HEAD_MULTIPLE, ROTARY_HEAD_MULTIPLE
from model.variants import MATRIX_SCORES

Weights = dict[str, Tensor]


def pad_heads(checkpoint: Checkpoint) -> Checkpoint:
    """An equivalent checkpoint with head sizes that the operators support.

    Heads with a norm that subtracts the mean, or with scores with matrices, are not padded.
    """
    config, weights = checkpoint.config, dict(checkpoint.weights)
    stacks = {
        name: _pad_stack(f"{name}.layers", stack, weights)
        for name, stack in (("encoder", config.encoder), ("decoder", config.decoder))
        if stack is not None
    }
    if all(stack is getattr(config, name) for name, stack in stacks.items()):
        return checkpoint
    return dataclasses.replace(
        checkpoint, config=msgspec.structs.replace(config, **stacks), weights=weights
    )


def _pad_stack(name: str, stack: StackConfig, weights: Weights) -> StackConfig:
    layers = tuple(
        _pad_layer(f"{name}.{index}", layer, weights) for index, layer in enumerate(stack.layers)
    )
    return stack if layers == stack.layers else msgspec.structs.replace(stack, layers=layers)


def _pad_layer(name: str, layer: LayerConfig, weights: Weights) -> LayerConfig:
    changes = {}
    for field, attention, pad in (
        ("attention", layer.attention, _pad_self_attention),
        ("cross_attention", layer.cross_attention, _pad_cross_attention),
    ):
        if attention is not None and _padded_size(attention) != attention.head_size:
            changes[field] = _pad_config(attention)
            pad(name, attention, weights)
    return msgspec.structs.replace(layer, **changes)


def _padded_size(attention: AttentionConfig) -> int:
    """The size of a padded head."""
    norm = attention.head_norm
    if attention.score in MATRIX_SCORES or (norm is not None and norm.kind != NormKind.RMS):
        return attention.head_size
    multiple = HEAD_MULTIPLE if attention.rotary is None else ROTARY_HEAD_MULTIPLE
    return -(-attention.head_size // multiple) * multiple


def _pad_config(attention: AttentionConfig) -> AttentionConfig:
    old, new = attention.head_size, _padded_size(attention)
    rotary, norm, scale = attention.rotary, attention.head_norm, attention.with_scale.scale
    if rotary is not None:
        rotary = msgspec.structs.replace(rotary, size=rotary.size or old)
    if norm is not None:
        # The mean square is over more dimensions, which multiplies it by old / new.
        norm = NormConfig(kind=norm.kind, epsilon=norm.epsilon * old / new)
    return msgspec.structs.replace(
        attention,
        head_size=new,
        scale=old**-0.5 if scale is None else scale,
        rotary=rotary,
        head_norm=norm,
    )


def _pad_self_attention(name: str, attention: AttentionConfig, weights: Weights) -> None:
    pad_last = _head_padder(attention)
    packed = attention.num_heads + 2 * attention.num_kv_heads
    _transform(weights, f"{name}.mixer.qkv", lambda x: pad_last(x, packed))
    _pad_rows(weights, f"{name}.mixer.output.weight", attention)
    for term in attention.disentangled.terms if attention.disentangled is not None else ():
        table = f"{name}.mixer.content_bias.{term}"
        weights[table] = pad_last(weights[table], attention.num_heads)
    for vector in ("query_bias", "segment_key"):
        name_of = f"{name}.mixer.content_bias.{vector}"
        if name_of in weights:
            weights[name_of] = pad_last(weights[name_of], attention.num_heads)
    for table in (f"{name}.mixer.relative.key_weight", f"{name}.mixer.relative.value_weight"):
        if table in weights:
            weights[table] = pad_last(weights[table], 1)
    global_tokens = f"{name}.mixer.global_tokens"
    _transform(weights, f"{global_tokens}.query", lambda x: pad_last(x, attention.num_heads))
    kv_heads = 2 * attention.num_kv_heads
    _transform(weights, f"{global_tokens}.key_value", lambda x: pad_last(x, kv_heads))
    norm_scale = (attention.head_size / _padded_size(attention)) ** 0.5
    is_whole = attention.head_norm_scope == HeadNormScope.ALL_HEADS
    for norm, heads in (("query_norm", attention.num_heads), ("key_norm", attention.num_kv_heads)):
        weight = f"{name}.mixer.{norm}.weight"
        if weight in weights:
            weights[weight] = pad_last(weights[weight], heads if is_whole else 1) * norm_scale


def _pad_cross_attention(name: str, attention: AttentionConfig, weights: Weights) -> None:
    pad_last, name = _head_padder(attention), f"{name}.cross_attention"
    _transform(weights, f"{name}.query", lambda x: pad_last(x, attention.num_heads))
    _transform(weights, f"{name}.key_value", lambda x: pad_last(x, 2 * attention.num_kv_heads))
    _pad_rows(weights, f"{name}.output.weight", attention)


def _head_padder(attention: AttentionConfig) -> Callable[[Tensor, int], Tensor]:
    """A function that pads ``[..., heads * old]`` to ``[..., heads * new]``.

    It pads each half of a head separately, which keeps rotary pairs ``(i, i + size / 2)``.
    """
    old, new = attention.head_size, _padded_size(attention)
    positions = torch.arange(old)
    positions[old // 2 :] += new // 2 - old // 2

    def pad_last(x: Tensor, num_heads: int) -> Tensor:
        heads = x.reshape(*x.shape[:-1], num_heads, old)
        padded = heads.new_zeros(*heads.shape[:-1], new)
        padded[..., positions] = heads
        return padded.flatten(-2, -1)

    return pad_last


def _transform(weights: Weights, module: str, change: Callable[[Tensor], Tensor]) -> None:
    for name in (f"{module}.weight", f"{module}.bias"):
        if name in weights:
            weights[name] = change(weights[name])


def _pad_rows(weights: Weights, name: str, attention: AttentionConfig) -> None:
    pad_last = _head_padder(attention)
    weights[name] = pad_last(weights[name].T, attention.num_heads).T.contiguous()
