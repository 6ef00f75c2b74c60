"""The checks and benchmarks of ``loadtest gpu``, in order. Pure."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from loadtest.gpu.model_sizes import BENCHMARK_SIZES, CHECK_SIZES, Family, ModelSize


class PlanSize(StrEnum):
    TINY = "tiny"  # only shows that everything works
    FULL = "full"


@dataclass(frozen=True, kw_only=True)
class Check:
    """One kernel path, compared with fp32 PyTorch.

    Args:
        config: fields of ``ServerConfig`` that select the path.
        tolerance: of a token's log-probability; for an encoder, of one minus the cosine.
        with_logprobs: whether the engine returns log-probabilities, which needs the logits on
            the host.
    """

    label: str
    size: ModelSize
    precision: str
    tolerance: float
    kv_cache: str = "float"
    config: Mapping[str, Any] = field(default_factory=dict)
    with_logprobs: bool = True

    @property
    def name(self) -> str:
        """The name in the report."""
        kv_cache = "" if self.kv_cache == "float" else f", {self.kv_cache} cache"
        return f"{self.label}, {self.precision}{kv_cache}"


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """One model in one precision at several batch sizes; ``config`` as for a check."""

    size: ModelSize
    precision: str
    batches: tuple[int, ...]
    num_tokens: int  # of each prompt, source or text
    num_new_tokens: int
    rounds: int
    kv_cache: str = "float"
    label: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name in the report."""
        kv_cache = "" if self.kv_cache == "float" else f", {self.kv_cache} cache"
        label = f", {self.label}" if self.label else ""
        return f"{self.size.name}, {self.precision}{kv_cache}{label}"


@dataclass(frozen=True, kw_only=True)
class CacheStep:
    """One decode step of attention alone; by default with the heads of the 1.1B Llama.

    The cache of each sequence holds ``num_cached`` of ``capacity`` tokens.
    """

    batch: int
    num_cached: int
    capacity: int
    num_heads: int = 32
    num_kv_heads: int = 4
    head_size: int = 64

    @property
    def name(self) -> str:
        """The name in the report."""
        return f"{self.batch} rows, {self.num_cached} of {self.capacity} tokens"

    @property
    def fields(self) -> dict[str, int]:
        """The fields of the message to ``loadtest/peers/attention_caches.py``."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Plan:
    device: str
    checks: tuple[Check, ...]
    benchmarks: tuple[Benchmark, ...]
    caches: tuple[CacheStep, ...]


# Of log-probabilities, with random weights; and of one minus the cosine of an encoder's vectors.
TOLERANCES = {"fp32": 0.001, "fp16": 0.02, "bf16": 0.15, "int8": 0.1, "int4": 0.8}
_COSINES = {"fp32": 1e-5, "fp16": 1e-4, "bf16": 1e-3, "int8": 0.002, "int4": 0.03}
_CACHE_TOLERANCE = 0.1
# Less than most prompts, so that they are prefilled in chunks.
CHUNKED = {"max_batched_tokens": 16}


# Paths that need a server option; a version without the option reports so. A CPU can be treated
# as a device with its own memory, as a GPU always is.
DEVICE_MEMORY = {"has_device_memory": True}
SAMPLED = "sampling on the device"
PADDED = "padded steps in a device's memory"
OPTIONS: dict[str, Mapping[str, Any]] = {
    PADDED: {**DEVICE_MEMORY, "cuda_graphs": True},
    "plain steps in a device's memory": {**DEVICE_MEMORY, "cuda_graphs": False},
    SAMPLED: {**DEVICE_MEMORY, "sampling": "device"},
}
_OF_INT8_CACHE: dict[str, Mapping[str, Any]] = {
    "prefill and decode": {},
    "chunked prefill": CHUNKED,
    PADDED: OPTIONS[PADDED],
}


def make_plan(device: str, sizes: PlanSize) -> Plan:
    """The plan for a device. Precisions start with fp32 on CPU, with fp16 on CUDA.

    CUDA has no fp32 attention kernel.
    """
    is_cuda = device.startswith("cuda")
    first = "fp16" if is_cuda else "fp32"
    if sizes == PlanSize.TINY:
        return Plan(
            device=device,
            checks=_checks((first, "int8"), (first,), first),
            benchmarks=tuple(_benchmark(size, first, (1, 4), 16, 8, 2) for size in CHECK_SIZES),
            caches=(CacheStep(batch=3, num_cached=300, capacity=512),),
        )
    precisions = ("fp16", "bf16", "int8", "int4") if is_cuda else ("fp32", "int8", "int4")
    batches = (1, 8, 64, 256)
    benchmarks = [_benchmark(size, first, batches, 128, 64, 3) for size in BENCHMARK_SIZES]
    large = next(size for size in BENCHMARK_SIZES if size.name == "llama-1.1b")
    some = _benchmark(large, first, (1, 64, 256), 128, 64, 3)
    benchmarks += [replace(some, precision=precision) for precision in ("int8", "int4")]
    benchmarks.append(replace(some, kv_cache="int8"))
    if is_cuda:
        plain = {"cuda_graphs": False}
        benchmarks.append(replace(some, label="without CUDA graphs", config=plain))
    # The 1.1B model first: it is the baseline, and takes longest to build.
    benchmarks.sort(key=lambda benchmark: benchmark.size is not large)
    caches = [
        CacheStep(batch=batch, num_cached=num_cached, capacity=2048)
        for batch in (1, 32, 128)
        for num_cached in (128, 1024)
    ]
    return Plan(
        device=device,
        checks=_checks(precisions, precisions, first),
        benchmarks=tuple(benchmarks),
        caches=tuple(caches),
    )


def _benchmark(
    size: ModelSize,
    precision: str,
    batches: tuple[int, ...],
    num_tokens: int,
    num_new_tokens: int,
    rounds: int,
) -> Benchmark:
    return Benchmark(
        size=size,
        precision=precision,
        batches=batches,
        num_tokens=num_tokens,
        num_new_tokens=0 if size.family == Family.ENCODER else num_new_tokens,
        rounds=rounds,
    )


def _checks(precisions: tuple[str, ...], others: tuple[str, ...], first: str) -> tuple[Check, ...]:
    """All decoder paths in ``first``; in other precisions the paths that depend on the weights."""
    llama_size, bart_size, bert_size = CHECK_SIZES
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
            found.append(_with(cross, "cross-attention in a device's memory", DEVICE_MEMORY))
    return tuple(found)


def _with(check: Check, label: str, config: Mapping[str, Any], **changes: Any) -> Check:
    return replace(check, label=label, config=config, with_logprobs=label != SAMPLED, **changes)
