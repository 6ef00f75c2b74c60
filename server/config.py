"""The server's configuration: frozen, parsed once by ``server.__main__``."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

# Token budget of one step, by kind of device: docs/decisions/0083-cuda-graphs.md.
BATCHED_TOKENS = {"cpu": 256, "cuda": 2048}
# Tokens of one encoder batch, padding included: docs/decisions/0097-encoder-batches.md.
PADDED_TOKENS = {"cpu": 256, "cuda": 4096}


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files. With ``client_ca``, clients need a certificate that it signed."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


class SamplingPlace(StrEnum):
    """Where tokens are sampled.

    ``AUTO``: on the device on a GPU, on the host on a CPU, where that is
    faster (docs/decisions/0085-sampling.md).
    """

    AUTO = "auto"
    HOST = "host"
    DEVICE = "device"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Lengths in tokens, times in seconds.

    Devices: each of ``devices`` has a replica of every model and ``num_lanes`` lanes.
    ``has_device_memory`` treats a CPU as a device whose memory the host cannot access. With
    ``cuda_graphs``, decode steps on a GPU are padded to a few sizes, recorded when a model is
    loaded, and replayed.

    Threads: the only active lane runs with ``num_threads``; several active lanes divide them.
    For that, a graph is loaded twice (:mod:`server.runtime.thread_switching`), unless that
    duplicates more than ``max_duplicated_bytes`` of weights. One lane alone runs up to
    ``single_lane_max_sequences`` sequences.

    Listeners: ``admin`` is the address for loading and unloading models; ``None`` opens none.
    Without ``tls`` nothing is encrypted, without ``tokens`` nobody needs one; the admin address
    uses ``admin_tokens`` if given. A connection has at most ``max_streams`` concurrent calls and
    closes after ``max_connection_seconds`` (``None``: never) plus the grace period.
    ``watch_seconds``: interval of checks for new bundles; ``None`` checks only at startup.

    Admission, per model: ``max_queue`` and ``max_queue_tokens`` bound the waiting sequences,
    ``max_queued_texts`` and ``max_queued_text_tokens`` an encoder's texts, ``max_tokenizing`` the
    requests that wait for tokenization. A client may use ``client_tokens_per_second`` (``None``:
    no limit), and ``client_burst_tokens`` (``None``: one minute's worth) at once. A stream ends
    when its client does not read it for ``stall_seconds``.
    """

    bundles: Path
    listen: str = "0.0.0.0:50051"
    metrics: str = "0.0.0.0:9464"
    admin: str | None = None
    watch_seconds: float | None = None
    tls: TlsFiles | None = None
    tokens: Path | None = None
    admin_tokens: Path | None = None
    max_streams: int = 512
    max_connection_seconds: float | None = None
    devices: tuple[str, ...] = ("cpu",)
    has_device_memory: bool = False
    sampling: SamplingPlace = SamplingPlace.AUTO
    cuda_graphs: bool = True
    num_lanes: int = 1
    num_threads: int = 1
    max_duplicated_bytes: int = 1 << 29
    single_lane_max_sequences: int = 8
    num_slots: int = 32
    max_length: int = 2048
    max_batched_tokens: int = BATCHED_TOKENS["cpu"]
    max_padded_tokens: int = PADDED_TOKENS["cpu"]
    max_queue: int = 256
    max_queue_tokens: int = 1 << 19
    max_queued_texts: int = 8192
    max_queued_text_tokens: int = 1 << 21
    max_tokenizing: int = 1024
    client_tokens_per_second: int | None = None
    client_burst_tokens: int | None = None
    max_input_bytes: int = 1 << 20
    stall_seconds: float = 30.0
    grace_seconds: float = 30.0

    @property
    def has_buckets(self) -> bool:
        """Whether decode runs are padded to a few sizes, and recorded if the device can.

        A session that records accepts runs from one thread only.
        """
        return self.cuda_graphs and self._has_separate_memory and self.num_lanes == 1

    @property
    def samples_on_device(self) -> bool:
        """Whether tokens are sampled by graphs on the device, where that is possible."""
        if self.sampling == SamplingPlace.AUTO:
            return self._has_separate_memory
        return self.sampling == SamplingPlace.DEVICE

    @property
    def keeps_logits(self) -> bool:
        """Whether logits stay on the device until the host needs them."""
        return self.samples_on_device and self._has_separate_memory

    @property
    def _has_separate_memory(self) -> bool:
        """Whether devices have memory that the host cannot access."""
        return self.has_device_memory or self.devices[0].startswith("cuda")

    @property
    def total_num_lanes(self) -> int:
        """Number of lanes over all devices."""
        return len(self.devices) * self.num_lanes

    @property
    def tokens_of_admin(self) -> Path | None:
        """The token file for the admin address."""
        return self.admin_tokens or self.tokens
