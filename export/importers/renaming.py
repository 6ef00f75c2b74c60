"""Foreign weight names to ours: tables, applied strictly."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from export.errors import WeightsError

Transform = Callable[..., Tensor]


def same(weight: Tensor) -> Tensor:
    """As it is."""
    return weight


def stack_rows(*weights: Tensor) -> Tensor:
    """Vectors, one after the other."""
    return torch.cat(weights)


def transpose(*weights: Tensor) -> Tensor:
    """Matrices ``[outputs, inputs]``, as ``torch.nn.Linear`` holds them, to one ``[inputs, sum]``.

    Several are packed on the output axis.
    """
    return torch.cat(weights).T


@dataclass(frozen=True)
class Rename:
    """Our ``target`` is ``transform`` of the checkpoint's ``sources``."""

    target: str
    sources: tuple[str, ...]
    transform: Transform = same

    def at(self, layer: int, *, source_layer: int | None = None) -> "Rename":
        """This entry with ``{n}`` filled in: ``layer`` for us, ``source_layer`` for them."""
        number = layer if source_layer is None else source_layer
        return Rename(
            self.target.replace("{n}", str(layer)),
            tuple(source.replace("{n}", str(number)) for source in self.sources),
            self.transform,
        )


def picked(rows: Tensor) -> Transform:
    """Those rows of what is stacked: outputs in another order."""

    def pick(*weights: Tensor) -> Tensor:
        stacked = torch.cat(weights)
        if len(stacked) != len(rows):
            raise RuntimeError(f"{len(stacked)} rows, not {len(rows)}")
        return stacked[rows]

    return pick


def stacked_experts(num_kinds: int) -> Transform:
    """Matrices ``[outputs, inputs]`` of each expert in turn, to ``[experts, outputs, inputs]``.

    Args:
        num_kinds: matrices of one expert; their rows alternate.
    """

    def stack(*weights: Tensor) -> Tensor:
        experts = [
            torch.stack(weights[first : first + num_kinds], 1).flatten(0, 1)
            for first in range(0, len(weights), num_kinds)
        ]
        return torch.stack(experts)

    return stack


def rows_by_kind(num_heads: int, head_size: int, order: Tensor | None = None) -> Tensor:
    """Rows of queries, then keys, then values, where theirs are packed head by head.

    Args:
        order: their index of each dimension of a query's or key's head; as it is unless given.
    """
    packed = torch.arange(num_heads * 3 * head_size).view(num_heads, 3, head_size)
    query, key, value = packed.unbind(1)
    if order is not None:
        query, key = query[:, order], key[:, order]
    return torch.stack([query, key, value]).flatten()


def linear(target: str, *sources: str, bias: bool, rows: Transform = stack_rows) -> list[Rename]:
    """Our linear layer from one or more ``torch.nn.Linear``, packed on the output axis.

    Args:
        rows: makes one of several weights ``[outputs, inputs]`` or biases ``[outputs]``.
    """
    names = {"weight": lambda *weights: rows(*weights).T, "bias": rows}
    return [
        Rename(f"{target}.{name}", tuple(f"{source}.{name}" for source in sources), transform)
        for name, transform in names.items()
        if bias or name == "weight"
    ]


def affine(target: str, source: str, transform: Transform = same) -> list[Rename]:
    """Weight and bias of a layer that both sides hold alike: a layer norm, say."""
    names = ("weight", "bias")
    return [Rename(f"{target}.{name}", (f"{source}.{name}",), transform) for name in names]


def per_layer(
    table: Iterable[Rename], num_layers: int, *, first_source_layer: int = 0
) -> list[Rename]:
    """``table`` for each layer; ``first_source_layer`` is 1 where the checkpoint counts from it."""
    entries = tuple(table)
    return [
        entry.at(layer, source_layer=layer + first_source_layer)
        for layer in range(num_layers)
        for entry in entries
    ]


def prefixed(table: Iterable[Rename], prefix: str) -> list[Rename]:
    """``table`` for a checkpoint that puts ``prefix`` before each of its names."""
    return [
        Rename(entry.target, tuple(prefix + source for source in entry.sources), entry.transform)
        for entry in table
    ]


def rename(
    table: Iterable[Rename],
    weights: Mapping[str, Tensor],
    *,
    ignored: Collection[str] = (),
) -> dict[str, Tensor]:
    """Every weight of ``table``, in fp32, from those of a checkpoint.

    Args:
        ignored: weights of the checkpoint that may be there but have no use.

    Raises:
        WeightsError: lists every weight that the table needs and the checkpoint lacks, and
            every one that the checkpoint has and nothing uses, by the checkpoint's names.
    """
    entries = list(table)
    needed = dict.fromkeys(source for entry in entries for source in entry.sources)
    used = {*needed, *ignored}
    lines = [f"missing: {name}" for name in needed if name not in weights]
    lines += [f"unexpected: {name}" for name in weights if name not in used]
    if lines:
        raise WeightsError(
            "\n".join(["the checkpoint's weights are not those of its kind:", *lines])
        )
    return {entry.target: _apply(entry, weights) for entry in entries}


def _apply(entry: Rename, weights: Mapping[str, Tensor]) -> Tensor:
    sources = [weights[name].to(torch.float32) for name in entry.sources]
    try:
        return entry.transform(*sources).contiguous()
    except RuntimeError as error:  # shapes that do not go together
        shapes = ", ".join(
            f"{name} {list(source.shape)}"
            for name, source in zip(entry.sources, sources, strict=True)
        )
        raise WeightsError(f"wrong shapes: {shapes}: {error}") from error
