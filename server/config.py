"""The server's configuration: frozen, parsed once by ``server.__main__``."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

# Tokens that a step may read, by kind of device: docs/decisions/0083-cuda-graphs.md.
BATCHED_TOKENS = {"cpu": 256, "cuda": 2048}
# Of a batch of texts, padding included: docs/decisions/0097-encoder-batches.md.
PADDED_TOKENS = {"cpu": 256, "cuda": 4096}


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """In PEM. With ``client_ca``, clients need a certificate that it vouches for."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


class SamplingPlace(StrEnum):
    """Where tokens are chosen: where the logits are, wherever a graph can, or by the host.

    ``AUTO`` leaves it to the device: a CPU is faster on the host (0085).
    """

    AUTO = "auto"
    HOST = "host"
    DEVICE = "device"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Lengths in tokens, times in seconds.

    Each of ``devices`` has a replica of every model, and ``num_lanes``. ``has_device_memory``
    treats a CPU as a device whose memory the host cannot reach. With ``cuda_graphs``, steps of a
    GPU are padded to a few sizes, recorded when a model is loaded, and played back.

    ``num_threads`` are those of a run that is alone; ``num_lanes`` runs side by side share
    them. Of a graph's weights at most ``max_paired_bytes`` are held twice for that: see
    :mod:`server.runtime.thread_switching`. While no more than ``single_lane_max_sequences``
    sequences run, one lane takes them all.

    ``admin``: the address at which models are loaded and unloaded; None opens none.
    ``watch_seconds``: between two looks at the folder of bundles; None looks once.

    ``max_queue`` and ``max_queue_tokens`` bound the sequences that wait, per model, beyond what
    runs; ``max_queued_texts`` and ``max_queued_text_tokens`` the texts of an encoder;
    ``max_tokenizing`` the requests that wait to be tokenized. One client may ask for
    ``client_tokens_per_second`` (None: no limit), read or generated, and for
    ``client_burst_tokens`` (None: a minute's) at once. A stream that its client does not read
    for ``stall_seconds`` is ended.

    ``tls`` None is no encryption, ``tokens`` None asks for none; the admin address has
    ``admin_tokens``, or else the same. A connection has at most ``max_streams`` calls at a time,
    and is closed after ``max_connection_seconds`` (None: never) and the grace period.
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
    max_paired_bytes: int = 1 << 29
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
        """Whether decode runs are padded to a few sizes, and recorded where a device can.

        A session that records takes runs of one thread alone.
        """
        return self.cuda_graphs and self._is_apart and self.num_lanes == 1

    @property
    def samples_on_device(self) -> bool:
        """Whether graphs choose tokens, where they can."""
        if self.sampling == SamplingPlace.AUTO:
            return self._is_apart
        return self.sampling == SamplingPlace.DEVICE

    @property
    def keeps_logits(self) -> bool:
        """Whether logits stay on the device until they are asked for."""
        return self.samples_on_device and self._is_apart

    @property
    def _is_apart(self) -> bool:
        """Whether the host does not reach the devices' memory."""
        return self.has_device_memory or self.devices[0].startswith("cuda")

    @property
    def num_all_lanes(self) -> int:
        """Of all devices."""
        return len(self.devices) * self.num_lanes

    @property
    def tokens_of_admin(self) -> Path | None:
        """The file of the tokens that calls to the admin address need."""
        return self.admin_tokens or self.tokens
