"""What ``loadtest gpu`` does, in which order. Pure."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from loadtest.gpu.sizes import CHECKED, MEASURED, Family, Size


class Extent(StrEnum):
    TINY = "tiny"  # does all of it run?
    FULL = "full"


@dataclass(frozen=True, kw_only=True)
class Check:
    """One path of the kernels, held to fp32 PyTorch.

    ``config``: fields of the server's configuration that choose the path. ``tolerance``: of a
    token's log-probability; of an encoder, of one less a vector's cosine. ``is_told``: whether
    the engine tells log-probabilities, for which the host needs whole logits.
    """

    label: str
    size: Size
    precision: str
    tolerance: float
    kv_cache: str = "float"
    config: Mapping[str, Any] = field(default_factory=dict)
    is_told: bool = True

    @property
    def name(self) -> str:
        """As the report has it."""
        kv_cache = "" if self.kv_cache == "float" else f", {self.kv_cache} cache"
        return f"{self.label}, {self.precision}{kv_cache}"


@dataclass(frozen=True, kw_only=True)
class Speed:
    """One model in one precision, at some batch sizes; ``config`` as of a check."""

    size: Size
    precision: str
    batches: tuple[int, ...]
    num_tokens: int  # of a prompt, source or text
    num_new_tokens: int
    rounds: int
    kv_cache: str = "float"
    label: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """As the report has it."""
        kv_cache = "" if self.kv_cache == "float" else f", {self.kv_cache} cache"
        label = f", {self.label}" if self.label else ""
        return f"{self.size.name}, {self.precision}{kv_cache}{label}"


@dataclass(frozen=True, kw_only=True)
class CacheStep:
    """One decode step of attention alone, of the 1.1 billion Llama's heads unless said otherwise.

    ``num_cached`` of ``capacity`` tokens of each row are there.
    """

    batch: int
    num_cached: int
    capacity: int
    num_heads: int = 32
    num_kv_heads: int = 4
    head_size: int = 64

    @property
    def name(self) -> str:
        """As the report has it."""
        return f"{self.batch} rows, {self.num_cached} of {self.capacity} tokens"

    @property
    def fields(self) -> dict[str, int]:
        """As ``loadtest/peers/attention_caches.py`` wants them."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Plan:
    device: str
    checks: tuple[Check, ...]
    speeds: tuple[Speed, ...]
    caches: tuple[CacheStep, ...]


# Of a log-probability, with random weights; and of one less the cosine of an encoder's vectors.
TOLERANCES = {"fp32": 0.001, "fp16": 0.02, "bf16": 0.15, "int8": 0.1, "int4": 0.8}
_COSINES = {"fp32": 1e-5, "fp16": 1e-4, "bf16": 1e-3, "int8": 0.002, "int4": 0.03}
_CACHE_TOLERANCE = 0.1
# A prompt is longer than this, so that it is read in pieces over what is cached.
CHUNKED = {"max_batched_tokens": 16}


# Paths that options of the server turn on: a version without one says so. A CPU can be treated as
# a device whose memory the host does not reach; a GPU always is one.
APART = {"has_device_memory": True}
SAMPLED = "sampling on the device"
PADDED = "padded steps in a device's memory"
OPTIONS: dict[str, Mapping[str, Any]] = {
    PADDED: {**APART, "cuda_graphs": True},
    "plain steps in a device's memory": {**APART, "cuda_graphs": False},
    SAMPLED: {**APART, "sampling": "device"},
}
_OF_INT8_CACHE: dict[str, Mapping[str, Any]] = {
    "prefill and decode": {},
    "chunked prefill": CHUNKED,
    PADDED: OPTIONS[PADDED],
}


def make_plan(device: str, extent: Extent) -> Plan:
    """On a CPU the first precision is fp32, which no attention on CUDA computes in."""
    is_cuda = device.startswith("cuda")
    first = "fp16" if is_cuda else "fp32"
    if extent == Extent.TINY:
        return Plan(
            device=device,
            checks=_checks((first, "int8"), (first,), first),
            speeds=tuple(_speed(size, first, (1, 4), 16, 8, 2) for size in CHECKED),
            caches=(CacheStep(batch=3, num_cached=300, capacity=512),),
        )
    precisions = ("fp16", "bf16", "int8", "int4") if is_cuda else ("fp32", "int8", "int4")
    batches = (1, 4, 16, 32, 64, 128, 256)
    speeds = [
        _speed(size, first, batches, 512 if size.family == Family.ENCODER else 128, 64, 3)
        for size in MEASURED
    ]
    large = next(size for size in MEASURED if size.name == "llama-1.1b")
    some = _speed(large, first, (1, 32, 256), 128, 64, 3)
    speeds += [replace(some, precision=precision) for precision in ("int8", "int4")]
    speeds.append(replace(some, kv_cache="int8"))
    if is_cuda:
        plain = {"cuda_graphs": False}
        speeds.append(replace(some, label="without CUDA graphs", config=plain))
    # The 1.1 billion first: what the others are compared with, and what takes longest to make.
    speeds.sort(key=lambda speed: speed.size is not large)
    caches = [
        CacheStep(batch=batch, num_cached=num_cached, capacity=2048)
        for batch in (1, 32, 128)
        for num_cached in (128, 1024)
    ]
    return Plan(
        device=device,
        checks=_checks(precisions, precisions, first),
        speeds=tuple(speeds),
        caches=tuple(caches),
    )


def _speed(
    size: Size,
    precision: str,
    batches: tuple[int, ...],
    num_tokens: int,
    num_new_tokens: int,
    rounds: int,
) -> Speed:
    return Speed(
        size=size,
        precision=precision,
        batches=batches,
        num_tokens=num_tokens,
        num_new_tokens=0 if size.family == Family.ENCODER else num_new_tokens,
        rounds=rounds,
    )


def _checks(precisions: tuple[str, ...], others: tuple[str, ...], first: str) -> tuple[Check, ...]:
    """All paths of a decoder in ``first``, and in each precision those that its weights touch."""
    llama_size, bart_size, bert_size = CHECKED
    found: list[Check] = []
    for precision in precisions:
        tolerance = TOLERANCES[precision]
        decoder = Check(
            label="prefill and decode", size=llama_size, precision=precision, tolerance=tolerance
        )
        found += [decoder, _with(decoder, "chunked prefill", CHUNKED)]
        if precision == first:
            found += [_with(decoder, label, config) for label, config in OPTIONS.items()]
            cached = TOLERANCES[first] + _CACHE_TOLERANCE
            for label, config in _OF_INT8_CACHE.items():
                found.append(_with(decoder, label, config, kv_cache="int8", tolerance=cached))
    for precision in others:
        tolerance = TOLERANCES[precision]
        cross = Check(
            label="cross-attention", size=bart_size, precision=precision, tolerance=tolerance
        )
        encoder = Check(
            label="encoder", size=bert_size, precision=precision, tolerance=_COSINES[precision]
        )
        found += [cross, encoder]
        if precision == first:
            found.append(_with(cross, "cross-attention in a device's memory", APART))
    return tuple(found)


def _with(check: Check, label: str, config: Mapping[str, Any], **changes: Any) -> Check:
    return replace(check, label=label, config=config, is_told=label != SAMPLED, **changes)
