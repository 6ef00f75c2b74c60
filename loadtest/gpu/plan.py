"""What ``loadtest gpu`` runs: descriptions of its items. Pure."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from loadtest.gpu.model_sizes import ModelSize

OURS = "triune"


class PlanSize(StrEnum):
    TINY = "tiny"  # only shows that everything works
    FULL = "full"


class Part(StrEnum):
    """A group of items; ``--only "steps:"`` selects one."""

    CHECKS = "checks"
    STEPS = "steps"
    PROFILE = "profile"
    ENCODERS = "encoders"
    PEERS = "peers"
    PREFILL = "prefill"
    CACHES = "caches"
    OPTIONS = "options"


@dataclass(frozen=True, kw_only=True)
class Check:
    """One kernel path, compared with fp32 PyTorch.

    Args:
        config: fields of ``ServerConfig`` that select the path.
        tolerance: of a token's log-probability; for an encoder, of one minus the cosine.
        with_logprobs: whether the engine returns log-probabilities, which needs the logits on
            the host. Without them, steps may start ahead.
        num_rows: sequences or texts together.
        beams: more than one searches; the sum of a sequence's log-probabilities is compared then.
    """

    label: str
    size: ModelSize
    precision: str
    tolerance: float
    kv_cache: str = "float"
    config: Mapping[str, Any] = field(default_factory=dict)
    with_logprobs: bool = True
    num_rows: int = 8
    beams: int = 1

    @property
    def name(self) -> str:
        """The name in the report."""
        return f"{self.label}, {self.precision}{_of_cache(self.kv_cache)}"


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """One engine with one model in one precision at several batch sizes.

    Args:
        num_tokens: of each prompt, source or text.
        config: as for a check.
        engine: ours, or a module of ``loadtest/peers``. All engines share the rows of a name.
        limit_seconds: for everything, the engine's start included.
        lanes: of our engine.
        beams: of each sequence, of which the tokens of the best one count.
    """

    size: ModelSize
    precision: str
    batches: tuple[int, ...]
    num_tokens: int
    num_new_tokens: int
    rounds: int
    kv_cache: str = "float"
    label: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    engine: str = OURS
    limit_seconds: float = math.inf
    lanes: int = 1
    beams: int = 1

    @property
    def name(self) -> str:
        """The name in the report."""
        label = f", {self.label}" if self.label else ""
        return f"{self.size.name}, {self.precision}{_of_cache(self.kv_cache)}{label}"

    @property
    def title(self) -> str:
        """The name of the measurement: with the engine, if it is not ours."""
        return self.name if self.engine == OURS else f"{self.name}, {self.engine}"


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Where the device's time goes in a benchmark's batches."""

    benchmark: Benchmark

    @property
    def name(self) -> str:
        """The name in the report."""
        return self.benchmark.name

    @property
    def title(self) -> str:
        return self.name


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
    def title(self) -> str:
        return self.name

    @property
    def fields(self) -> dict[str, int]:
        """The fields of the message to ``loadtest/peers/attention_caches.py``."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to run, in the order of its value: a GPU may be lent for minutes only."""

    device: str
    checks: tuple[Check, ...]
    items: tuple[tuple[Part, Benchmark | Profile | CacheStep], ...]

    @property
    def benchmarks(self) -> tuple[Benchmark, ...]:
        """The items that measure an engine's speed."""
        return tuple(item for _, item in self.items if isinstance(item, Benchmark))

    @property
    def bundles(self) -> tuple[Benchmark, ...]:
        """One benchmark for each bundle that is measured."""
        found: dict[tuple[str, str, str], Benchmark] = {}
        for each in self.benchmarks:
            if each.engine == OURS:
                found.setdefault((each.size.name, each.precision, each.kv_cache), each)
        return tuple(found.values())


def _of_cache(kv_cache: str) -> str:
    return "" if kv_cache == "float" else f", {kv_cache} cache"
