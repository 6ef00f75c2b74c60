"""The server's configuration: frozen, parsed once by ``server.__main__``."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Lengths in tokens, times in seconds.

    ``num_threads`` are those of a run that is alone; ``num_lanes`` runs side by side share
    them. Weights of at most ``max_paired_bytes`` are held twice for that: see
    :mod:`server.backend.paired`. While no more than ``gather_rows`` sequences run, one lane
    takes them all. ``max_queue``
    and ``max_queued_texts`` bound what waits, per model, beyond what runs.
    """

    bundles: Path
    listen: str = "0.0.0.0:50051"
    metrics: str = "0.0.0.0:9464"
    device: str = "cpu"
    num_lanes: int = 1
    num_threads: int = 1
    max_paired_bytes: int = 1 << 29
    gather_rows: int = 4
    num_slots: int = 32
    max_length: int = 2048
    max_step_tokens: int = 256
    max_padded_tokens: int = 4096
    max_queue: int = 256
    max_queued_texts: int = 8192
    max_input_bytes: int = 1 << 20
    grace_seconds: float = 30.0
