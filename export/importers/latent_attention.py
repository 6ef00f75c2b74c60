"""Multi-head latent attention as in DeepSeek-V2 (DeepSeek-AI 2024, section 2.1), for all families.

A head's first dimensions are not rotated, its last ones are; :mod:`model.latent` has another order.
"""

import math
from typing import NamedTuple

import torch
from msgspec import structs
from torch import Tensor

from export.errors import SourceError
from export.importers.decoder_names import TARGET
from export.importers.gated_decoder import DecoderSizes
from export.importers.norms import rms_norm
from export.importers.renaming import Rename, Transform, linear, same, stack_rows
from export.importers.rotary import Rotary, rope_parameters, rotary
from export.readers.fields import Fields
from export.supported import check_supported
from model.config import AttentionConfig, LatentConfig
from model.fused import ROTARY_HEAD_MULTIPLE

_SOURCE, _TARGET = "model.layers.{n}.self_attn", f"{TARGET}.mixer.qkv"
_EPSILON = 1e-6  # of the norms of latent vectors, whatever the configuration says


class LatentAttention(NamedTuple):
    """The attention of all layers, and their positions."""

    config: AttentionConfig
    positions: Rotary


def latent_sizes(config: Fields, **options: object) -> Fields:
    """``config`` with the size of a head that has room for queries, keys and values.

    Args:
        options: defaults of the family's configuration.

    Raises:
        SourceError: a number of key-value heads that is not that of heads.
    """
    config = config.with_defaults(**options)
    heads = config.positive("num_attention_heads")
    if config.positive("num_key_value_heads", heads) != heads:
        raise SourceError(f"{config.origin}: num_key_value_heads is not num_attention_heads")
    query = config.positive("qk_nope_head_dim") + config.positive("qk_rope_head_dim")
    size = max(query, config.positive("v_head_dim"))
    size = -(-size // ROTARY_HEAD_MULTIPLE) * ROTARY_HEAD_MULTIPLE
    return Fields({**config, "head_dim": size}, config.origin)


def latent_attention(config: Fields, sizes: DecoderSizes) -> LatentAttention:
    """The attention of a model; ``config`` is that of :func:`latent_sizes`."""
    latent = LatentConfig(
        size=config.positive("kv_lora_rank"),
        query_size=config.optional_integer("q_lora_rank") or None,
        plain_size=config.positive("qk_nope_head_dim"),
        rotated_size=config.positive("qk_rope_head_dim"),
        value_size=config.positive("v_head_dim"),
        norm=rms_norm(_EPSILON),
    )
    if latent.plain_size % 2 or latent.rotated_size % 2:
        raise SourceError(f"{config.origin}: parts of heads with an odd number of dimensions")
    positions = rotary(config, latent.rotated_size)
    bias = config.flag("attention_bias", False)
    check_supported(config, mlp_bias=(False,))
    attention = sizes.attention(
        input_bias=bias,
        output_bias=bias,
        rotary=structs.replace(positions.config, size=latent.rotated_size),
        scale=_magnitude(config) ** 2 * (latent.plain_size + latent.rotated_size) ** -0.5,
        latent=latent,
    )
    return LatentAttention(attention, positions)


def _magnitude(config: Fields) -> float:
    """What YaRN multiplies queries and keys by, beside the rotated part."""
    parameters = rope_parameters(config)
    kind = parameters.text("rope_type", parameters.text("type", "default"))
    weight = parameters.number("mscale_all_dim", 0.0)
    if kind == "default" or not weight:
        return 1.0
    factor = parameters.number("factor")
    return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0


def _by_head(weight: Tensor, num_heads: int, size: int) -> Tensor:
    """``[heads * size, ...]`` to ``[heads, size, ...]``."""
    return weight.reshape(num_heads, size, *weight.shape[1:])


def latent_table(
    attention: AttentionConfig, *, interleaved: bool, output: Transform = stack_rows
) -> list[Rename]:
    """The weights of a layer's ``attention``.

    Args:
        interleaved: whether rotary positions rotate neighbouring dimensions.
        output: the transform of the output matrix's rows.
    """
    latent = attention.latent
    if latent is None:
        raise ValueError("this attention has no latent vectors")
    rotated = torch.arange(latent.rotated_size)
    order = torch.cat([rotated[0::2], rotated[1::2]]) if interleaved else rotated
    heads, shared = attention.num_heads, latent.size + order

    def query_rows(weight: Tensor) -> Tensor:
        """Heads ``[plain, rotated]`` to those of the model."""
        by_head = _by_head(weight, heads, latent.plain_size + latent.rotated_size)
        plain = by_head[:, : latent.plain_size]
        missing = attention.head_size - latent.plain_size - latent.rotated_size
        zeros = plain.new_zeros(heads, missing, *plain.shape[2:])
        halves = torch.cat([plain, zeros], 1).chunk(2, 1)
        turned = by_head[:, latent.plain_size + order].chunk(2, 1)
        return torch.cat([turned[0], halves[0], turned[1], halves[1]], 1).flatten(0, 1)

    def down_rows(query: Tensor, vector: Tensor) -> Tensor:
        query = query_rows(query) if latent.query_size is None else query
        return torch.cat([query, vector[: latent.size], vector[shared]])

    def up_rows(weight: Tensor) -> Tensor:
        by_head = _by_head(weight, heads, latent.plain_size + latent.value_size)
        parts = torch.split(by_head, [latent.plain_size, latent.value_size], 1)
        return torch.cat([part.flatten(0, 1) for part in parts])

    def down_bias(*biases: Tensor) -> Tensor:
        if latent.query_size is not None:
            return down_rows(*biases)
        (vector,) = biases  # queries have none
        rows = heads * (latent.plain_size + latent.rotated_size)
        return down_rows(vector.new_zeros(rows), vector)

    vectors = f"{_SOURCE}.kv_a_proj_with_mqa"
    query = f"{_SOURCE}.q_proj" if latent.query_size is None else f"{_SOURCE}.q_a_proj"
    table = linear(f"{_TARGET}.down", query, vectors, bias=False, rows=down_rows)
    if attention.input_bias:
        biased = (vectors,) if latent.query_size is None else (query, vectors)
        sources = tuple(f"{name}.bias" for name in biased)
        table.append(Rename(f"{_TARGET}.down.bias", sources, down_bias))
    if latent.query_size is not None:
        table.append(Rename(f"{_TARGET}.query_norm.weight", (f"{_SOURCE}.q_a_layernorm.weight",)))
        table += linear(f"{_TARGET}.query", f"{_SOURCE}.q_b_proj", bias=False, rows=query_rows)
    return [
        *table,
        Rename(f"{_TARGET}.norm.weight", (f"{_SOURCE}.kv_a_layernorm.weight",), same),
        *linear(f"{_TARGET}.up", f"{_SOURCE}.kv_b_proj", bias=False, rows=up_rows),
        *linear(
            f"{TARGET}.mixer.output",
            f"{_SOURCE}.o_proj",
            bias=attention.output_bias,
            rows=output,
        ),
    ]
