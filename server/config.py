"""The server's configuration: immutable, parsed once by ``server.__main__``."""

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


class SamplingLocation(StrEnum):
    """Where tokens are sampled.

    ``AUTO``: on the device for GPUs, on the host for CPUs (docs/decisions/0085-sampling.md).
    """

    AUTO = "auto"
    HOST = "host"
    DEVICE = "device"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Lengths in tokens, times in seconds.

    Devices: each of ``devices`` has a replica of every model and ``num_lanes`` lanes.
    ``has_device_memory`` treats a CPU as a device with separate memory, for tests. With
    ``cuda_graphs``, decode steps on a GPU are padded to a few sizes, recorded when a model is
    loaded, and replayed.

    Threads: the intra-op threads (``num_threads``) run one active lane, or are divided among
    several. Each graph therefore has two sessions, unless the weights that they do not share exceed
    ``max_duplicated_bytes`` (:mod:`server.runtime.thread_switching`). Up to
    ``single_lane_max_sequences`` sequences share one lane.

    Cache: ``num_slots`` sequences run at a time, and ``num_prefix_slots`` more rows keep the tokens
    of ended ones. Callers with different tokens or certificates do not reuse each other's prefixes,
    unless ``shares_prefixes``. Without authentication, all callers share them.

    Memory, in bytes: ``memory_budget`` limits what all models may take with full caches; ``None``
    sets no limit. Every ``memory_check_seconds``, rows unused for ``idle_seconds`` and cached
    prefixes unused for ``prefix_idle_seconds`` give their memory back.

    Listeners: ``http`` is the address of the HTTP front end; ``None`` opens none. ``http_cors``:
    origins whose pages may call it. ``tei_model``: the model of text-embeddings-inference's
    routes that name none; empty for no such routes. ``admin`` is the address for loading and
    unloading models; ``None`` opens none.
    Without ``tls``, connections are not encrypted. ``tokens`` and ``admin_tokens`` are files of
    bearer tokens; without ``tokens``, calls need none. The admin address uses ``admin_tokens`` if
    set, else ``tokens``. A connection has at most ``max_streams`` concurrent calls and closes
    after ``max_connection_seconds`` (``None``: never) plus the grace period. ``watch_seconds`` is
    the interval of checks for new bundles; ``None`` checks only at startup.

    Admission, per model: ``max_queue`` and ``max_queue_tokens`` limit the waiting sequences,
    ``max_queued_texts`` and ``max_queued_text_tokens`` the waiting texts of an encoder. All models
    together: ``max_tokenizing`` limits the requests that wait for tokenization. Per client:
    ``client_tokens_per_second`` is the rate (``None``: no limit), ``client_burst_tokens`` the
    burst (``None``: one minute of the rate). A stream ends when its client does not read it for
    ``stall_seconds``.

    Watchdog: the process exits if a run takes longer than ``stuck_seconds`` and 20 times what such
    a run usually takes, or a model's first run 10 times ``stuck_seconds``.
    """

    bundles: Path
    listen: str = "0.0.0.0:50051"
    metrics: str = "0.0.0.0:9464"
    http: str | None = None
    http_cors: tuple[str, ...] = ()
    tei_model: str = ""
    admin: str | None = None
    watch_seconds: float | None = None
    tls: TlsFiles | None = None
    tokens: Path | None = None
    admin_tokens: Path | None = None
    max_streams: int = 512
    max_connection_seconds: float | None = None
    devices: tuple[str, ...] = ("cpu",)
    has_device_memory: bool = False
    sampling: SamplingLocation = SamplingLocation.AUTO
    cuda_graphs: bool = True
    num_lanes: int = 1
    num_threads: int = 1
    max_duplicated_bytes: int = 1 << 29
    single_lane_max_sequences: int = 8
    num_slots: int = 32
    num_prefix_slots: int = 0
    shares_prefixes: bool = False
    memory_budget: int | None = None
    memory_check_seconds: float = 10.0
    idle_seconds: float = 30.0
    prefix_idle_seconds: float = 600.0
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
    stuck_seconds: float = 60.0
    grace_seconds: float = 30.0

    @property
    def authenticates_callers(self) -> bool:
        """Whether every call has a token or a client certificate."""
        return self.tokens is not None or (self.tls is not None and self.tls.client_ca is not None)

    @property
    def has_buckets(self) -> bool:
        """Whether decode runs are padded to a few sizes, and recorded where CUDA graphs exist.

        A session that records CUDA graphs accepts runs from one thread only.
        """
        return self.cuda_graphs and self.has_separate_memory and self.num_lanes == 1

    @property
    def samples_on_device(self) -> bool:
        """Whether sampling runs on the device, for the requests that it supports."""
        if self.sampling == SamplingLocation.AUTO:
            return self.has_separate_memory
        return self.sampling == SamplingLocation.DEVICE

    @property
    def keeps_logits_on_device(self) -> bool:
        """Whether logits stay on the device until the host needs them."""
        return self.samples_on_device and self.has_separate_memory

    @property
    def has_separate_memory(self) -> bool:
        """Whether host code cannot access the devices' memory."""
        return self.has_device_memory or self.devices[0].startswith("cuda")

    @property
    def num_lanes_total(self) -> int:
        """Lanes of all devices together."""
        return len(self.devices) * self.num_lanes

    @property
    def admin_token_file(self) -> Path | None:
        """The token file for the admin address."""
        return self.admin_tokens or self.tokens
