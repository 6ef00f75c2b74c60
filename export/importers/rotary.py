"""Rotary positions from configurations of ``transformers``."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from export.errors import SourceError, UnsupportedError
from export.importers.renaming import Transform, kind_rows, select_rows
from export.readers.fields import Fields
from export.supported import lookup
from model.config import AttentionConfig
from model.position_config import (
    LinearScaling,
    ListedScaling,
    Llama3Scaling,
    RotaryConfig,
    RotaryScaling,
    YarnScaling,
)


@dataclass(frozen=True)
class Rotary:
    """Rotary positions; ``config`` is valid up to ``max_positions``."""

    config: RotaryConfig
    max_positions: int


@dataclass(frozen=True)
class _Scaled:
    scaling: RotaryScaling | None = None
    magnitude: float = 1.0
    max_positions: int | None = None  # None: that of the configuration


def rope_parameters(config: Fields) -> Fields:
    """The parameters of rotary positions that are the same in all layers; see :func:`rotary`."""
    return config.fields("rope_scaling") or config.fields("rope_parameters")


def rotary(
    config: Fields,
    head_size: int,
    *,
    default_base: float = 10_000.0,
    default_fraction: float | None = None,
    layer_type: str | None = None,
) -> Rotary:
    """Reads ``rope_parameters`` (transformers 5) or ``rope_scaling`` (before).

    If a configuration has both, ``rope_scaling`` was added by hand and replaces the other, or its
    fields for a layer type.

    ``dynamic`` scaling has no effect within ``max_position_embeddings``, which is the limit here.
    ``longrope`` has other factors beyond ``original_max_position_embeddings``, its limit here.

    Args:
        default_fraction: the fraction of a head's dimensions that are rotated, if the
            configuration does not say; None: the family rotates all, whatever it says.
        layer_type: the layer type whose parameters to read, if they differ.

    Raises:
        SourceError, UnsupportedError: see :mod:`export.errors`.
    """
    of_types = config.fields("rope_parameters")
    if layer_type is not None and layer_type in of_types:
        own = of_types.fields(layer_type)
        parameters = Fields({**own, **config.fields("rope_scaling")}, own.origin)
    else:
        parameters = rope_parameters(config)
    kind = parameters.text("rope_type", parameters.text("type", "default"))
    scaled = lookup(SCALINGS, kind, f"{parameters.origin}: rope_type")(config, parameters)
    fraction = config.number(
        "partial_rotary_factor", 1.0 if default_fraction is None else default_fraction
    )
    fraction = parameters.number("partial_rotary_factor", fraction)
    if default_fraction is None and fraction != 1:
        raise UnsupportedError(
            f"{config.origin}: partial_rotary_factor {fraction} is not supported: transformers "
            "rotates whole heads of this family"
        )
    size = int(head_size * fraction)
    if not 0 < size <= head_size or size % 2:
        raise SourceError(f"{config.origin}: cannot rotate {size} of {head_size} dimensions")
    if isinstance(scaled.scaling, ListedScaling) and len(scaled.scaling.factors) != size // 2:
        raise SourceError(f"{parameters.origin}: the number of factors is not {size // 2}")
    base = parameters.number("rope_theta", config.number("rope_theta", default_base))
    max_positions = config.positive("max_position_embeddings")
    return Rotary(
        RotaryConfig(
            base=base,
            size=None if size == head_size else size,
            scaling=scaled.scaling,
            magnitude=scaled.magnitude,
        ),
        min(max_positions, scaled.max_positions or max_positions),
    )


def _original_positions(config: Fields, parameters: Fields) -> int:
    """The training length before the context was extended."""
    name = "original_max_position_embeddings"
    default = config.positive("max_position_embeddings")
    return config.positive(name, parameters.positive(name, default))


def _factor(parameters: Fields) -> float:
    factor = parameters.number("factor")
    if factor <= 0:
        raise SourceError(f"{parameters.origin}: factor is {factor}")
    return factor


def _unscaled(_config: Fields, _parameters: Fields) -> _Scaled:
    return _Scaled()


def _linear(_config: Fields, parameters: Fields) -> _Scaled:
    return _Scaled(LinearScaling(factor=_factor(parameters)))


def _llama3(config: Fields, parameters: Fields) -> _Scaled:
    scaling = Llama3Scaling(
        factor=_factor(parameters),
        low_frequency_factor=parameters.number("low_freq_factor"),
        high_frequency_factor=parameters.number("high_freq_factor"),
        original_positions=_original_positions(config, parameters),
    )
    return _Scaled(scaling)


def _yarn(config: Fields, parameters: Fields) -> _Scaled:
    factor = _factor(parameters)
    scaling = YarnScaling(
        factor=factor,
        original_positions=_original_positions(config, parameters),
        fast=parameters.number("beta_fast", 32.0) or 32.0,
        slow=parameters.number("beta_slow", 1.0) or 1.0,
        whole=parameters.flag("truncate", True),
    )

    def magnitude(weight: float) -> float:  # Peng et al. 2023, equation 22
        return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0

    over = parameters.number("mscale", 0.0)
    under = parameters.number("mscale_all_dim", 0.0)
    default = magnitude(over) / magnitude(under) if over and under else magnitude(1.0)
    return _Scaled(scaling, parameters.number("attention_factor", default))


def _longrope(config: Fields, parameters: Fields) -> _Scaled:
    original = _original_positions(config, parameters)
    longest = config.positive("max_position_embeddings")
    factor = parameters.number("factor", longest / original)
    default = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return _Scaled(
        ListedScaling(factors=parameters.numbers("short_factor")),
        parameters.number("attention_factor", default),
        original,
    )


SCALINGS: dict[str, Callable[[Fields, Fields], _Scaled]] = {
    "default": _unscaled,
    "dynamic": _unscaled,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "su": _longrope,  # the name in the first Phi-3
}


def rotary_dimensions_first(
    head_size: int, rotary: RotaryConfig | None, *, interleaved: bool = False
) -> Tensor:
    """The checkpoint's index for each dimension of a head.

    ``transformers`` rotates pairs ``(i, i + size / 2)`` of the first ``size`` dimensions, or
    neighbours ``(2 i, 2 i + 1)`` if ``interleaved``, as in the paper. This project rotates pairs
    ``(i, i + head_size / 2)``, with the angle 0 for pairs beyond ``size``.
    """
    if rotary is None:
        return torch.arange(head_size)
    size = rotary.size or head_size
    rotated = torch.arange(size)
    first, second = (rotated[0::2], rotated[1::2]) if interleaved else rotated.chunk(2)
    if size == head_size:
        return torch.cat([first, second])
    rest = torch.arange(size, head_size).chunk(2)
    return torch.cat([first, rest[0], second, rest[1]])


def rotary_rows(
    attention: AttentionConfig, *, interleaved: bool = False, is_reversed: bool = False
) -> Transform:
    """Stacks query, key and value weights; dimensions as in :func:`rotary_dimensions_first`.

    Args:
        is_reversed: the family rotates whole heads by the opposite angle. That of the halves in the
            other order is the usual one.
    """
    size, num_kv_heads = attention.head_size, attention.num_kv_heads
    heads = torch.arange((attention.num_heads + 2 * num_kv_heads) * size).view(-1, size)
    sizes = [attention.num_heads, num_kv_heads, num_kv_heads]
    query, key, value = torch.split(heads, sizes)
    order = rotary_dimensions_first(size, attention.rotary, interleaved=interleaved)
    if is_reversed:
        order = order.roll(size // 2)
    return select_rows(kind_rows(query, key, value, order))
