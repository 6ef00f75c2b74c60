"""LoRA adapters (Hu et al. 2021) that a bundle serves beside its base, as low-rank factors.

An importer may reorder, scale, transpose and concatenate weights. So the factors are found from the
difference of the imported weights, with and without the adapter (Halko et al. 2011, algorithm 4.1).
"""

import dataclasses
import itertools
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from export.checkpoint import Checkpoint
from export.errors import SourceError, UnsupportedError
from export.hub import PREFIX, Pulled, pull
from export.importers.native_adapter import (
    import_native_adapter,
    is_native_adapter,
    rank_of_native,
)
from export.importers.registry import import_adapted
from export.readers.lora import ADAPTER_FILE, is_adapter
from export.scratch import few_threads
from export.smooth_quant import ChannelScales
from export.sources import DEFAULT_SOURCES, SHIPPED_SOURCES, load_checkpoint
from export.tokenization.hugging_face import read_fields
from model.adapters import AdapterSpec
from model.bundle import NAME_PATTERN, EmbeddingKind
from model.config import ModelConfig

# Importers concatenate at most this many linear maps: queries, keys and values.
_MAX_CONCATENATED = 3
_OVERSAMPLING = 8
# Fields of a checkpoint in which an adapter may differ from its base.
_OWN = ("weights", "tokenizer_json", "name", "source", "license", "chat_template")
_CHECKS_ONLY = ("sample_inputs", "samples", "held_out", "shortlist")
ALONE = "export the adapter alone, which merges it"


@dataclass(frozen=True)
class Factors:
    """What an adapter adds to columns from ``start`` on of a matrix: ``a [inputs, rank] b``."""

    a: Tensor
    b: Tensor
    start: int = 0

    @property
    def num_numbers(self) -> int:
        """The size of both factors."""
        return self.a.numel() + self.b.numel()

    def scaled(self, scales: ChannelScales) -> "Factors":
        """The same for a matrix whose channels were scaled."""
        factors = scales.factors
        if scales.are_inputs:
            return dataclasses.replace(self, a=self.a * factors[:, None])
        every = torch.ones(max(self.start + self.b.shape[1], scales.start + len(factors)))
        every[scales.start : scales.start + len(factors)] = factors
        return dataclasses.replace(
            self, b=self.b * every[self.start : self.start + self.b.shape[1]]
        )


@dataclass(frozen=True)
class ServedAdapter:
    """An adapter of a bundle.

    Attributes:
        factors: by the names of the matrices that it changes; those of one matrix change other
            columns, or are a single one.
        load: reads the checkpoint with merged weights, for the parity check.
    """

    spec: AdapterSpec
    factors: Mapping[str, tuple[Factors, ...]]
    load: Callable[[], Checkpoint]

    def scaled(self, scales: ChannelScales) -> "ServedAdapter":
        """The same beside a base with a matrix whose channels were scaled."""
        factors = self.factors.get(scales.matrix)
        if factors is None:
            return self
        scaled = tuple(each.scaled(scales) for each in factors)
        changed = {**self.factors, scales.matrix: scaled}
        return dataclasses.replace(self, factors=changed)


def parse_adapters(given: Sequence[str]) -> dict[str, str]:
    """Sources of adapters by name, from ``NAME=FOLDER`` or ``NAME=hf:OWNER/NAME``.

    Raises:
        SourceError: one has another form, or two have the same name.
    """
    found: dict[str, str] = {}
    for text in given:
        name, separator, source = text.partition("=")
        if not separator or not source:
            raise SourceError(f"--adapter {text}: write NAME=FOLDER or NAME={PREFIX}OWNER/NAME")
        if not re.fullmatch(NAME_PATTERN, name):
            raise SourceError(f"--adapter {name!r} does not match {NAME_PATTERN}")
        if name in found:
            raise SourceError(f"--adapter {name}: two adapters have this name")
        found[name] = source
    return found


def read_adapters(
    sources: Mapping[str, str],
    base: Checkpoint,
    base_source: str,
    tower: str | None = None,
    vectors: EmbeddingKind | None = None,
) -> tuple[ServedAdapter, ...]:
    """Reads the adapters ``sources``, by name, of the checkpoint ``base``.

    Args:
        base_source: the source of ``base``, as :func:`export.sources.load_checkpoint` takes it.

    Raises:
        SourceError: an adapter is missing or damaged, or does not fit the base.
        UnsupportedError: an adapter changes more than linear maps, or the base reads images.
    """
    if sources and base.config.vision is not None:
        raise UnsupportedError(
            "--adapter: adapters beside a decoder that reads images are not supported: "
            "export each alone, merged"
        )
    adapters = []
    for name, source in sources.items():
        found = _find(name, source)

        def load(path: Path = found.path) -> Checkpoint:
            return _import(path, base_source, tower, vectors)

        adapted = load()
        _check_same(name, base, adapted)
        rank = _rank(found.path)
        own_template = adapted.chat_template != base.chat_template
        spec = AdapterSpec(
            name=name,
            rank=rank,
            license=adapted.license,
            source=found.source or None,
            chat_template=adapted.chat_template if own_template else None,
        )
        with few_threads(base.weights):
            factors = _factors(name, base, adapted, rank)
        adapters.append(ServedAdapter(spec, factors, load))
    return tuple(adapters)


def _find(name: str, source: str) -> Pulled:
    found = pull(source) if source.startswith(PREFIX) else Pulled(path=Path(source), source="")
    if not is_adapter(found.path) and not is_native_adapter(found.path):
        raise SourceError(f"--adapter {name}: {source} is no adapter: no {ADAPTER_FILE}")
    return found


def _import(path: Path, base: str, tower: str | None, vectors: EmbeddingKind | None) -> Checkpoint:
    """The model ``base`` with the adapter in ``path``."""
    if is_native_adapter(path):
        return import_native_adapter(path, load_checkpoint(base, tower, vectors))
    if base in DEFAULT_SOURCES:
        with DEFAULT_SOURCES[base].whole() as folder:
            return import_adapted(path, folder, tower, vectors)
    if base in SHIPPED_SOURCES:
        return import_adapted(path, SHIPPED_SOURCES[base].locate(), tower, vectors)
    folder = pull(base).path if base.startswith(PREFIX) else Path(base)
    return import_adapted(path, folder, tower, vectors)


def _check_same(name: str, base: Checkpoint, adapted: Checkpoint) -> None:
    """Raises ``UnsupportedError`` unless only weights and a chat template differ."""
    differing = [
        field.name
        for field in dataclasses.fields(Checkpoint)
        if field.name not in (*_OWN, *_CHECKS_ONLY)
        and getattr(base, field.name) != getattr(adapted, field.name)
    ]
    if _vocabulary(base) != _vocabulary(adapted):
        differing.append("tokenizer")
    if differing:
        raise UnsupportedError(
            f"--adapter {name}: not as in the base: {', '.join(differing)}: {ALONE}"
        )


def _vocabulary(checkpoint: Checkpoint) -> dict[str, object]:
    """The tokenizer without what only training uses."""
    content: dict[str, object] = json.loads(checkpoint.tokenizer_json)
    return {key: x for key, x in content.items() if key not in ("padding", "truncation")}


def _rank(path: Path) -> int:
    """The largest rank of the adapter in ``path``."""
    if is_native_adapter(path):
        return rank_of_native(path)
    config = read_fields(path / ADAPTER_FILE)
    patterns = config.fields("rank_pattern")
    return max([config.integer("r", 8), *(patterns.integer(name) for name in patterns)])


def _factors(
    name: str, base: Checkpoint, adapted: Checkpoint, rank: int
) -> dict[str, tuple[Factors, ...]]:
    factors = {}
    for matrix, weight in base.weights.items():
        merged = adapted.weights[matrix]
        if torch.equal(weight, merged):
            continue
        if weight.dim() != 2 or ".layers." not in matrix:
            raise UnsupportedError(f"--adapter {name}: it changes {matrix}: {ALONE}")
        starts = _starts(base.config, matrix, weight.shape[1])
        found = factors_of(weight.float(), merged.float(), starts, rank)
        if not found:
            raise UnsupportedError(
                f"--adapter {name}: its change of {matrix} is not of a low rank (DoRA): {ALONE}"
            )
        factors[matrix] = found
    if not factors:
        raise SourceError(f"--adapter {name}: it changes nothing")
    return factors


def _starts(config: ModelConfig, matrix: str, num_outputs: int) -> tuple[int, ...]:
    """Where the matrices begin that are concatenated as ``matrix``, which is of a layer."""
    name, _, index, *rest = matrix.split(".")
    stack = config.encoder if name == "encoder" else config.decoder
    if stack is None or not index.isdecimal() or int(index) >= len(stack.layers):
        return (0,)
    layer, part = stack.layers[int(index)], ".".join(rest)
    if part == "mixer.qkv.weight" and layer.attention is not None:
        size = layer.attention.head_size
        keys, values = layer.attention.num_heads * size, layer.attention.num_kv_heads * size
        is_whole = num_outputs == keys + 2 * values
        return (0, keys, keys + values) if is_whole else (0,)
    is_gated = layer.feed_forward is not None and layer.feed_forward.gated
    is_half = part == "cross_attention.key_value.weight"
    is_half |= part == "feed_forward.input.weight" and is_gated
    return (0, num_outputs // 2) if is_half else (0,)


def factors_of(
    weight: Tensor, merged: Tensor, starts: Sequence[int], rank: int
) -> tuple[Factors, ...]:
    """The smallest factors of ``merged - weight``; empty if its rank is too high.

    Args:
        weight: ``[inputs, outputs]`` in fp32; ``merged`` likewise.
        starts: the first columns of concatenated matrices.
        rank: that of the change of a matrix.
    """
    whole = low_rank(weight, merged, _MAX_CONCATENATED * rank)
    if whole is None:
        return ()
    parts = []
    for start, stop in itertools.pairwise((*starts, weight.shape[1])):
        columns = slice(start, stop)
        if torch.equal(weight[:, columns], merged[:, columns]):
            continue
        part = low_rank(weight[:, columns], merged[:, columns], rank)
        if part is None:
            return (whole,)
        parts.append(dataclasses.replace(part, start=start))
    # An adapter of the concatenated matrix has one factor A for all of its parts.
    is_smaller = sum(part.num_numbers for part in parts) < whole.num_numbers
    return tuple(parts) if is_smaller else (whole,)


def low_rank(weight: Tensor, merged: Tensor, max_rank: int) -> Factors | None:
    """Factors of ``merged - weight``, up to the rounding of their values; None beyond ``max_rank``.

    All are fp32 ``[inputs, outputs]``.
    """
    change = merged.double() - weight.double()
    num_inputs, num_outputs = change.shape
    # The spectral norm of rounding errors, which are independent: a few times their size.
    rounding = float(merged.double().square().mean().sqrt()) * 2**-23
    noise = rounding * (math.sqrt(num_inputs) + math.sqrt(num_outputs))
    generator = torch.Generator().manual_seed(0)
    width = min(num_inputs, num_outputs, max_rank + _OVERSAMPLING)
    probes = torch.randn((num_outputs, width), generator=generator, dtype=torch.float64)
    basis, _ = torch.linalg.qr(change @ probes)  # [inputs, width]
    left, sizes, right = torch.linalg.svd(basis.T @ change, full_matrices=False)
    rank = max(1, int((sizes > noise).sum()))
    a, b = basis @ left[:, :rank], sizes[:rank, None] * right[:rank]
    error = float((change - a @ b).norm())
    allowed = 1e-5 * float(change.norm()) + 2 * rounding * math.sqrt(change.numel())
    if rank > max_rank or error > allowed:
        return None
    scale = sizes[:rank].sqrt()  # divided between both, so that fp16 holds them
    return Factors((a * scale).float().contiguous(), (b / scale[:, None]).float().contiguous())
