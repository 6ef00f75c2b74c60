"""What an engine reports of its steps. The implementation is in ``server.telemetry.metrics``."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class RunReport:
    """One model run. ``phase``: "encode", "prefill" or "decode"."""

    phase: str
    num_rows: int
    num_tokens: int  # real ones, without padding
    seconds: float


@dataclass(frozen=True, slots=True)
class Load:
    """What a worker holds after a step. An encoder has no slots and no cache."""

    num_waiting: int
    num_running: int
    num_slots: int = 0
    num_cached_tokens: int = 0
    cache_capacity_tokens: int = 0
    num_cuda_graphs: int = 0
    cuda_graph_bytes: int = 0


class Observer(Protocol):
    """Called by a lane's thread; must not block."""

    def on_run(self, model: str, report: RunReport) -> None: ...

    def on_step(self, model: str, lane: int, load: Load, seconds: float) -> None: ...


class Unobserved:
    """An observer that keeps nothing."""

    def on_run(self, model: str, report: RunReport) -> None:
        del model, report

    def on_step(self, model: str, lane: int, load: Load, seconds: float) -> None:
        del model, lane, load, seconds
