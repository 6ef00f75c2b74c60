"""The server's configuration: immutable, and the schema of its options.

A field with an :class:`~server.option.Option` is a flag, an environment variable and a key of the
TOML file (:mod:`server.settings`). Adding an option is one line here.
"""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from server.addresses import check_grpc_address, host_and_port
from server.config_defaults import (
    BATCHED_TOKENS,
    PADDED_TOKENS,
    default_batched_tokens,
    default_num_lanes,
    default_num_prefix_slots,
    default_padded_tokens,
    is_folder,
    num_cores,
)
from server.option import Computed, Option

# gRPC takes limits, and times in milliseconds, as signed 32-bit integers.
_MAX_INT = 2**31 - 1
_MAX_SECONDS = _MAX_INT // 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files, reloaded when they change. ``client_ca`` must sign the clients' certificates."""

    certificate: Annotated[
        Path, Option("Certificate chain (PEM); read again when it changes.", "tls_cert")
    ]
    key: Annotated[Path, Option("The certificate's key (PEM).", "tls_key")]
    client_ca: Annotated[
        Path | None,
        Option("CA (PEM) that must have signed every client's certificate.", "tls_client_ca"),
    ] = None


class SamplingLocation(StrEnum):
    """Where tokens are sampled.

    ``AUTO`` means the device for GPUs, the host for CPUs (docs/decisions/0085-sampling.md).
    """

    AUTO = "auto"
    HOST = "host"
    DEVICE = "device"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The server's options. Lengths are in tokens, times in seconds.

    Devices: each of ``devices`` has a replica of every model and ``num_lanes`` lanes.
    ``has_device_memory`` treats a CPU as a device with separate memory, for tests. With
    ``cuda_graphs``, decode steps and runs over short prompts and texts on a GPU are padded to a few
    sizes, recorded when a model is loaded, and replayed.

    Threads: the intra-op threads (``num_threads``) run one active lane, or are divided among
    several. Each graph therefore has two sessions, unless the weights that they do not share exceed
    ``max_duplicated_bytes`` (:mod:`server.runtime.thread_switching`). Up to
    ``single_lane_max_sequences`` sequences share one lane.

    Cache: per model and lane, ``num_slots`` sequences run at a time, and ``num_prefix_slots`` more
    rows keep the prefixes of finished ones. ``allows_drafts``: sequences that run alone may draft
    tokens (:mod:`server.engine.speculative`).

    Admission, per model: ``max_queue`` and ``max_queue_tokens`` limit the waiting sequences,
    ``max_queued_texts`` and ``max_queued_text_tokens`` the waiting texts of an encoder. All models
    together: ``max_tokenizing`` limits the requests that wait for tokenization.

    Memory, in bytes: ``memory_budget`` limits the memory of all models with full caches; ``None``
    sets no limit. Every ``memory_check_seconds``, the server frees the memory of rows unused for
    ``idle_seconds`` and of cached prefixes unused for ``prefix_idle_seconds``.

    Watchdog: the process exits if a run takes longer than both ``stuck_seconds`` and 20 times its
    usual duration, or if a model's first run takes 10 times ``stuck_seconds``.
    """

    bundles: Annotated[
        Path, Option("Folder of NAME/VERSION bundles.", check=is_folder, default=Path("bundles"))
    ]
    listen: Annotated[str, Option("gRPC address, HOST:PORT.", check=check_grpc_address)] = (
        "0.0.0.0:50051"
    )
    metrics: Annotated[str, Option("Prometheus address.", check=host_and_port)] = "0.0.0.0:9464"
    http: Annotated[
        str | None,
        Option(
            "HTTP address, HOST:PORT; none opens no HTTP port.",
            check=host_and_port,
            default="127.0.0.1:8080",
        ),
    ] = None
    http_cors: Annotated[
        tuple[str, ...],
        Option(
            "Origin whose pages may call the HTTP port, such as https://example.org; may be "
            "given several times. Default: none."
        ),
    ] = ()
    tei_model: Annotated[
        str,
        Option("Model of text-embeddings-inference's routes that name none, such as /embed."),
    ] = ""
    admin: Annotated[
        str | None,
        Option(
            "Address for loading and unloading models, best on loopback. Default: off.",
            check=check_grpc_address,
        ),
    ] = None
    watch_seconds: Annotated[
        float | None,
        Option("Check for new bundles every N seconds. Default: off.", "watch", minimum=0.1),
    ] = None
    tls: TlsFiles | None = None
    tokens: Annotated[
        Path | None,
        Option("Require a bearer token from this file: one TOKEN or NAME:TOKEN per line."),
    ] = None
    admin_tokens: Annotated[
        Path | None, Option("Tokens for the admin address. Default: those of --tokens.")
    ] = None
    max_streams: Annotated[
        int, Option("Concurrent calls per connection.", minimum=1, maximum=_MAX_INT)
    ] = 512
    max_connection_seconds: Annotated[
        float | None,
        Option(
            "Close connections after N seconds. Default: never.",
            "max_connection_age",
            minimum=1,
            maximum=_MAX_SECONDS,
        ),
    ] = None
    devices: Annotated[
        tuple[str, ...],
        Option(
            "cpu, cuda or cuda:N; cuda:0,cuda:1 puts a replica of every model on both.", "device"
        ),
    ] = ("cpu",)
    has_device_memory: Annotated[
        bool,
        Option("Keep the cache in device memory, even on a CPU.", "device_memory", hidden=True),
    ] = False
    sampling: Annotated[
        SamplingLocation,
        Option("Where tokens are sampled. auto: on the GPU if there is one, else on the host."),
    ] = SamplingLocation.AUTO
    cuda_graphs: Annotated[
        bool,
        Option("Record runs of fixed sizes as CUDA graphs when a model is loaded; replay them."),
    ] = True
    num_threads: Annotated[
        int,
        Option(
            "Intra-op threads when only one lane is active. Default: all cores of the container.",
            "threads",
            minimum=1,
            default=Computed(num_cores),
        ),
    ] = 1
    num_lanes: Annotated[
        int,
        Option(
            "Concurrent batches per device. Default: 1; on a CPU, one per core, up to 4.",
            "lanes",
            minimum=1,
            default=Computed(default_num_lanes),
        ),
    ] = 1
    max_duplicated_bytes: int = 1 << 29
    single_lane_max_sequences: int = 8
    allows_drafts: bool = True
    num_slots: Annotated[
        int, Option("Sequences decoded together, per model and lane.", "slots", minimum=1)
    ] = 32
    num_prefix_slots: Annotated[
        int,
        Option(
            "Prompts and answers kept for reuse beside the running sequences, per model and "
            "lane. Default: as many as --slots; on a GPU, 0.",
            "prefix_slots",
            minimum=0,
            default=Computed(default_num_prefix_slots),
        ),
    ] = 0
    shares_prefixes: Annotated[
        bool,
        Option(
            "Reuse cached prompts across callers. Default: only for the caller's own token or "
            "certificate.",
            "share_prefixes",
        ),
    ] = False
    memory_budget: Annotated[
        int | None,
        Option(
            "Memory of the process, all models with full caches: 6GiB, 6G, a share of the memory "
            "of this machine or container, or none. Models that do not fit get fewer slots, or are "
            "refused.",
            default="80%",
        ),
    ] = None
    memory_check_seconds: float = 10.0
    idle_seconds: float = 30.0
    prefix_idle_seconds: float = 600.0
    max_length: Annotated[int, Option("Longest sequence, in tokens.", minimum=2)] = 2048
    max_batched_tokens: Annotated[
        int,
        Option(
            "Token budget of one step. Default: 256; on a GPU, 2048.",
            minimum=1,
            default=Computed(default_batched_tokens),
            deprecated=("max_step_tokens",),
        ),
    ] = BATCHED_TOKENS["cpu"]
    max_padded_tokens: Annotated[
        int,
        Option(
            "Tokens of one encoder batch, padding included.",
            minimum=1,
            default=Computed(default_padded_tokens),
            hidden=True,
        ),
    ] = PADDED_TOKENS["cpu"]
    max_queue: Annotated[int, Option("Queued sequences, per model.", minimum=0)] = 256
    max_queue_tokens: Annotated[
        int, Option("Tokens of queued sequences, per model.", minimum=0)
    ] = 1 << 19
    max_queued_texts: int = 8192
    max_queued_text_tokens: int = 1 << 21
    max_tokenizing: int = 1024
    client_tokens_per_second: Annotated[
        int | None,
        Option("Tokens per second that one client may use. Default: no limit.", minimum=1),
    ] = None
    client_burst_tokens: Annotated[
        int | None,
        Option("Tokens that one client may use at once. Default: one minute's worth.", minimum=1),
    ] = None
    max_input_bytes: int = 1 << 19
    stall_seconds: Annotated[
        float, Option("End a stream that its client does not read for N seconds.", minimum=0.1)
    ] = 30.0
    stuck_seconds: Annotated[
        float,
        Option("Exit if a model run takes longer, and far longer than usual.", minimum=0.1),
    ] = 60.0
    grace_seconds: Annotated[
        float,
        Option(
            "Seconds that calls in flight get to finish after SIGTERM.",
            "grace",
            minimum=0,
            maximum=_MAX_SECONDS,
        ),
    ] = 30.0

    @property
    def authenticates_callers(self) -> bool:
        """Whether every call has a token or a client certificate."""
        return self.tokens is not None or (self.tls is not None and self.tls.client_ca is not None)

    @property
    def has_buckets(self) -> bool:
        """Whether runs are padded to a few sizes, and recorded where CUDA graphs exist.

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
