"""Reports of an engine's runs and steps. ``server.telemetry.metrics`` implements the observer."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol


class RunReport(NamedTuple):
    """One model run, or several over the next tokens of the same sequences."""

    phase: str  # "encode", "prefill" or "decode"
    num_sequences: int
    num_tokens: int  # in each run, without padding
    seconds: Sequence[float]  # one duration for each run
    num_draft_tokens: int = 0  # of speculative decoding
    num_accepted_tokens: int = 0  # the part of them that saved a run each


class WorkerStats(NamedTuple):
    """A worker's queue, slots and cache. An encoder has no slots and no cache."""

    num_waiting: int
    num_running: int
    num_slots: int = 0
    num_cached_tokens: int = 0
    cache_capacity_tokens: int = 0
    num_cuda_graphs: int = 0
    cuda_graph_bytes: int = 0


def total_stats(stats: Iterable[WorkerStats]) -> WorkerStats:
    """Adds up the stats of several workers, at least one."""
    first, *others = stats
    return WorkerStats(*map(sum, zip(first, *others, strict=True))) if others else first


class Observer(Protocol):
    """Receives reports. Its methods are called on a lane's thread and must not block."""

    def on_run(self, model: str, report: RunReport) -> None: ...

    def on_step(self, model: str, seconds: float) -> None: ...

    def on_stats(self, model: str, lane: int, stats: WorkerStats) -> None:
        """Called after each step, and when a version of the model was added or removed."""
        ...


class Unobserved:
    """An observer that ignores all reports."""

    def on_run(self, model: str, report: RunReport) -> None:
        del model, report

    def on_step(self, model: str, seconds: float) -> None:
        del model, seconds

    def on_stats(self, model: str, lane: int, stats: WorkerStats) -> None:
        del model, lane, stats
