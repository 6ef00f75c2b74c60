"""Converts a checkpoint's weights to this project's names, by strictly applied tables."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from export.checkpoint import is_finite, refuse_damaged
from export.errors import WeightsError

Transform = Callable[..., Tensor]
NONE: Mapping[str, Any] = MappingProxyType({})


def same(weight: Tensor) -> Tensor:
    """The weight, unchanged."""
    return weight


def add_one(weight: Tensor) -> Tensor:
    """``1 + w``."""
    return weight + 1


def chained(first: Transform, second: Transform) -> Transform:
    """``second(first(...))``."""
    return lambda *weights: second(first(*weights))


def scaled(factor: float) -> Transform:
    """Concatenates weights on their first axis and multiplies them by ``factor``."""
    return lambda *weights: factor * torch.cat(weights)


def stack_rows(*weights: Tensor) -> Tensor:
    """Concatenates weights on their first axis."""
    return torch.cat(weights)


@dataclass(frozen=True)
class Rename:
    """The weight ``target`` of the model is ``transform`` of the checkpoint's ``sources``."""

    target: str
    sources: tuple[str, ...]
    transform: Transform = same

    def at(self, layer: int, *, source_layer: int | None = None) -> "Rename":
        """This entry with ``{n}`` filled in: ``layer`` in the target, ``source_layer`` in sources.

        ``source_layer`` defaults to ``layer``.
        """
        number = layer if source_layer is None else source_layer
        return Rename(
            self.target.replace("{n}", str(layer)),
            tuple(source.replace("{n}", str(number)) for source in self.sources),
            self.transform,
        )

    def renamed(self, name: Callable[[str], str]) -> "Rename":
        """This entry with ``name(source)`` for each source."""
        return Rename(self.target, tuple(map(name, self.sources)), self.transform)


def select_rows(rows: Tensor) -> Transform:
    """Concatenates weights and selects ``rows``, to reorder the outputs."""

    def select(*weights: Tensor) -> Tensor:
        stacked = torch.cat(weights)
        if len(stacked) != len(rows):
            raise RuntimeError(f"{len(stacked)} rows, not {len(rows)}")
        return stacked[rows]

    return select


def stacked_experts(num_kinds: int) -> Transform:
    """Stacks matrices ``[outputs, inputs]``, expert by expert, to ``[experts, outputs, inputs]``.

    Args:
        num_kinds: matrices per expert; their rows are interleaved.
    """

    def stack(*weights: Tensor) -> Tensor:
        experts = [
            torch.stack(weights[first : first + num_kinds], 1).flatten(0, 1)
            for first in range(0, len(weights), num_kinds)
        ]
        return torch.stack(experts)

    return stack


def interleave_halves(weight: Tensor) -> Tensor:
    """``[experts, 2 * n, inputs]`` with the rows of both halves interleaved, first half first."""
    first, second = weight.chunk(2, 1)
    return torch.stack([first, second], 2).flatten(1, 2)


def rows_by_kind(
    num_heads: int, head_size: int, order: Tensor | None = None, *, num_groups: int | None = None
) -> Tensor:
    """Row indices that sort weights packed group by group into queries, keys and values.

    A group is a key head and a value head, after the query heads that they serve.

    Args:
        order: the checkpoint's index of each dimension of a query or key head; default: the same
            order.
        num_groups: default: one group per head.
    """
    groups = num_groups or num_heads
    packed = torch.arange((num_heads + 2 * groups) * head_size).view(groups, -1, head_size)
    return kind_rows(packed[:, :-2], packed[:, -2], packed[:, -1], order)


def kind_rows(query: Tensor, key: Tensor, value: Tensor, order: Tensor | None = None) -> Tensor:
    """Row indices ``[..., head_size]``: queries, then keys, then values; ``order`` as above."""
    if order is not None:
        query, key = query[..., order], key[..., order]
    return torch.cat([query.flatten(), key.flatten(), value.flatten()])


def linear(target: str, *sources: str, bias: bool, rows: Transform = stack_rows) -> list[Rename]:
    """A linear map from one or more ``torch.nn.Linear``, packed on the output axis.

    Args:
        rows: combines the weights ``[outputs, inputs]`` or biases ``[outputs]`` of the sources.
    """
    names = {"weight": lambda *weights: rows(*weights).T, "bias": rows}
    return [
        Rename(f"{target}.{name}", tuple(f"{source}.{name}" for source in sources), transform)
        for name, transform in names.items()
        if bias or name == "weight"
    ]


def affine(target: str, source: str, transform: Transform = same) -> list[Rename]:
    """Weight and bias with the same layout in both, as for a layer norm."""
    names = ("weight", "bias")
    return [Rename(f"{target}.{name}", (f"{source}.{name}",), transform) for name in names]


def per_layer(
    table: Iterable[Rename], num_layers: int, *, first_source_layer: int = 0
) -> list[Rename]:
    """``table`` for all layers; the checkpoint numbers layers from ``first_source_layer``."""
    entries = tuple(table)
    return [
        entry.at(layer, source_layer=layer + first_source_layer)
        for layer in range(num_layers)
        for entry in entries
    ]


def numbered(names: Iterable[str], num_layers: int) -> list[str]:
    """``names`` for all layers; ``{n}`` is the layer's number."""
    return [name.replace("{n}", str(layer)) for layer in range(num_layers) for name in names]


def prefixed(table: Iterable[Rename], prefix: str) -> list[Rename]:
    """``table`` for a checkpoint whose names all start with ``prefix``."""
    return [
        Rename(entry.target, tuple(prefix + source for source in entry.sources), entry.transform)
        for entry in table
    ]


def rename(
    table: Iterable[Rename],
    weights: Mapping[str, Tensor],
    *,
    ignored: Collection[str] = (),
    copies: Mapping[str, str] = NONE,
    computed: Mapping[str, Tensor] = NONE,
) -> dict[str, Tensor]:
    """Every target of ``table``, in fp32, from a checkpoint's weights.

    Args:
        ignored: weights that the checkpoint may have but the model does not need.
        copies: weights that the checkpoint may have in addition: a copy's name, and the target of
            the entry that it copies.
        computed: weights that the checkpoint may have and what the model computes instead, in
            fp32. NaN marks values that the model does not use.

    Raises:
        WeightsError: lists all missing and all unexpected weights by the checkpoint's names, or
            those that are not finite, or those of ``copies`` and ``computed`` that differ from
            what replaces them.
    """
    entries = list(table)
    needed = dict.fromkeys(source for entry in entries for source in entry.sources)
    sources = {entry.target: entry.sources[0] for entry in entries if entry.sources}
    originals = {name: sources[target] for name, target in copies.items() if target in sources}
    used = {*needed, *ignored, *originals, *computed}
    lines = [f"missing: {name}" for name in needed if name not in weights]
    lines += [f"unexpected: {name}" for name in weights if name not in used]
    if lines:
        raise WeightsError(
            "\n".join(["the checkpoint's weights do not match its architecture:", *lines])
        )
    renamed = {entry.target: _apply(entry, weights) for entry in entries}
    broken = [entry for entry in entries if not is_finite(renamed[entry.target])]
    refuse_damaged(dict.fromkeys(name for entry in broken for name in _damaged(entry, weights)))
    _check_replaced(weights, originals, computed)
    return renamed


def _damaged(entry: Rename, weights: Mapping[str, Tensor]) -> list[str]:
    """The sources of ``entry`` that are not finite; all of them if only the transform overflows."""
    found = [name for name in entry.sources if not is_finite(_read(weights, name))]
    return found or list(entry.sources)


def _check_replaced(
    weights: Mapping[str, Tensor], originals: Mapping[str, str], computed: Mapping[str, Tensor]
) -> None:
    """Checks that the weights which an import drops equal what replaces them.

    Copies must be equal. Position tables may be rounded, and may have another number of rows.

    Args:
        originals: the weight that is used, by the name of its copy.
        computed: the computed table, by the name of the saved one.
    """
    lines = []
    for name, original in originals.items():
        if name in weights and not _are_equal(_read(weights, name), _read(weights, original)):
            lines.append(f"{name}, which {original} replaces")
    for name, table in computed.items():
        if name in weights and not _is_rounded(_read(weights, name), table):
            lines.append(f"{name}, which a formula replaces")
    if lines:
        raise WeightsError("\n".join(["weights differ from what replaces them:", *lines]))


def _read(weights: Mapping[str, Tensor], name: str) -> Tensor:
    """Reads ``name``; rejects integers, which are quantized and need scales."""
    weight = weights[name]
    if not weight.is_floating_point():
        raise WeightsError(f"{name} is of type {weight.dtype}, not floating point")
    return weight


def _are_equal(copy: Tensor, original: Tensor) -> bool:
    coarser = max(copy.dtype, original.dtype, key=lambda dtype: torch.finfo(dtype).eps)
    return torch.equal(copy.to(coarser), original.to(coarser))


def _is_rounded(given: Tensor, table: Tensor) -> bool:
    """Whether ``given`` is ``table`` up to the rounding of its type and of fp32 angles."""
    if given.shape[1:] != table.shape[1:]:
        return False
    rows = min(len(given), len(table))
    tolerance = 1e-3 + torch.finfo(given.dtype).eps
    expected = table[:rows]
    actual = torch.where(expected.isnan(), expected, given[:rows].float())
    return torch.allclose(actual, expected, rtol=0, atol=tolerance, equal_nan=True)


def _apply(entry: Rename, weights: Mapping[str, Tensor]) -> Tensor:
    sources = [_read(weights, name).to(torch.float32) for name in entry.sources]
    try:
        return entry.transform(*sources).contiguous()
    except (RuntimeError, IndexError, TypeError) as error:  # incompatible shapes
        shapes = ", ".join(
            f"{name} {list(source.shape)}"
            for name, source in zip(entry.sources, sources, strict=True)
        )
        raise WeightsError(f"wrong shapes: {shapes}: {error}") from error
