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


def linear(target: str, *sources: str, bias: bool) -> list[Rename]:
    """Our linear layer from one or more ``torch.nn.Linear``, packed on the output axis."""
    weights = tuple(f"{source}.weight" for source in sources)
    table = [Rename(f"{target}.weight", weights, transpose)]
    if bias:
        biases = tuple(f"{source}.bias" for source in sources)
        table.append(Rename(f"{target}.bias", biases, stack_rows))
    return table


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
