"""``python -m server``: the command line."""

import logging
import math
import os
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from server.byte_sizes import parse_bytes
from server.config import BATCHED_TOKENS, PADDED_TOKENS, SamplingLocation, ServerConfig, TlsFiles
from server.errors import StartupError
from server.installation import check_installation
from server.log_format import log_to_stderr
from server.runtime.devices import parse_device, parse_devices
from server.runtime.process_memory import container_bytes

log = logging.getLogger("server")


def _finite(value: float | None) -> float | None:
    """Rejects NaN and infinity, which pass the bounds of an option."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number")
    return value


# More lanes would make the batch of each too small.
MAX_LANES = 4
# gRPC takes limits, and times in milliseconds, as signed 32-bit integers.
_MAX_INT = 2**31 - 1


def main(
    bundles: Annotated[
        Path, typer.Option(help="Folder of NAME/VERSION bundles.", exists=True, file_okay=False)
    ] = Path("bundles"),
    listen: Annotated[str, typer.Option(help="gRPC address, HOST:PORT.")] = "0.0.0.0:50051",
    metrics: Annotated[str, typer.Option(help="Prometheus address.")] = "0.0.0.0:9464",
    http: Annotated[
        str, typer.Option(help="HTTP address, HOST:PORT; none opens no HTTP port.")
    ] = "127.0.0.1:8080",
    http_cors: Annotated[
        list[str] | None,
        typer.Option(
            help="Origin whose pages may call the HTTP port, such as https://example.org; may be "
            "given several times. Default: none."
        ),
    ] = None,
    tei_model: Annotated[
        str,
        typer.Option(
            help="Model of text-embeddings-inference's routes that name none, such as /embed."
        ),
    ] = "",
    admin: Annotated[
        str | None,
        typer.Option(
            help="Address for loading and unloading models, best on loopback. Default: off."
        ),
    ] = None,
    watch: Annotated[
        float | None,
        typer.Option(
            min=0.1, callback=_finite, help="Check for new bundles every N seconds. Default: off."
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help="Certificate chain (PEM); read again when it changes.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="The certificate's key (PEM).")] = None,
    tls_client_ca: Annotated[
        Path | None, typer.Option(help="CA (PEM) that must have signed every client's certificate.")
    ] = None,
    tokens: Annotated[
        Path | None,
        typer.Option(
            help="Require a bearer token from this file: one TOKEN or NAME:TOKEN per line."
        ),
    ] = None,
    admin_tokens: Annotated[
        Path | None, typer.Option(help="Tokens for the admin address. Default: those of --tokens.")
    ] = None,
    max_streams: Annotated[
        int, typer.Option(min=1, max=_MAX_INT, help="Concurrent calls per connection.")
    ] = 512,
    max_connection_age: Annotated[
        float | None,
        typer.Option(
            min=1,
            max=_MAX_INT // 1000,
            callback=_finite,
            help="Close connections after N seconds. Default: never.",
        ),
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            help="cpu, cuda or cuda:N; cuda:0,cuda:1 puts a replica of every model on both."
        ),
    ] = "cpu",
    device_memory: Annotated[
        bool, typer.Option(help="Keep the cache in device memory, even on a CPU.", hidden=True)
    ] = False,
    sampling: Annotated[
        SamplingLocation,
        typer.Option(
            help="Where tokens are sampled. auto: on the GPU if there is one, else on the host."
        ),
    ] = SamplingLocation.AUTO,
    cuda_graphs: Annotated[
        bool,
        typer.Option(
            help="Record decode steps as CUDA graphs when a model is loaded, and replay them."
        ),
    ] = True,
    lanes: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Concurrent batches per device. Default: 1; on a CPU, one per core, up to 4.",
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1, help="Intra-op threads when only one lane is active. Default: all cores."
        ),
    ] = None,
    slots: Annotated[
        int, typer.Option(min=1, help="Sequences decoded together, per model and lane.")
    ] = 32,
    prefix_slots: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Prompts and answers kept for reuse beside the running sequences, per model and "
            "lane. Default: as many as --slots; on a GPU, 0.",
        ),
    ] = None,
    share_prefixes: Annotated[
        bool,
        typer.Option(
            help="Reuse cached prompts across callers. Default: only for the caller's own token "
            "or certificate."
        ),
    ] = False,
    memory_budget: Annotated[
        str,
        typer.Option(
            help="Memory for all models with full caches: 6GiB, 6G, or a share of the memory of "
            "this machine or container. Models that do not fit get fewer slots, or are refused."
        ),
    ] = "80%",
    max_length: Annotated[int, typer.Option(min=2, help="Longest sequence, in tokens.")] = 2048,
    max_batched_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Token budget of one step. Default: 256; on a GPU, 2048."),
    ] = None,
    max_step_tokens: Annotated[int | None, typer.Option(min=1, hidden=True)] = None,
    max_queue: Annotated[int, typer.Option(min=0, help="Queued sequences, per model.")] = 256,
    max_queue_tokens: Annotated[
        int, typer.Option(min=0, help="Tokens of queued sequences, per model.")
    ] = 1 << 19,
    client_tokens_per_second: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens per second that one client may use. Default: no limit."),
    ] = None,
    client_burst_tokens: Annotated[
        int | None,
        typer.Option(
            min=1, help="Tokens that one client may use at once. Default: one minute's worth."
        ),
    ] = None,
    stall_seconds: Annotated[
        float,
        typer.Option(
            min=0.1,
            callback=_finite,
            help="End a stream that its client does not read for N seconds.",
        ),
    ] = 30.0,
    stuck_seconds: Annotated[
        float,
        typer.Option(
            min=0.1,
            callback=_finite,
            help="Exit if a model run takes longer, and far longer than usual.",
        ),
    ] = 60.0,
    grace: Annotated[
        float,
        typer.Option(
            min=0,
            max=_MAX_INT // 1000,
            callback=_finite,
            help="Seconds that calls in flight get to finish after SIGTERM.",
        ),
    ] = 30.0,
) -> None:
    """Serves bundles over gRPC and HTTP until SIGTERM."""
    log_to_stderr()
    num_cores = len(os.sched_getaffinity(0))
    try:
        devices = parse_devices(device)
    except StartupError as error:
        log.error("%s", error)
        raise typer.Exit(1) from error
    if max_step_tokens is not None:
        log.warning("--max-step-tokens is deprecated: use --max-batched-tokens")
        max_batched_tokens = max_batched_tokens or max_step_tokens
    config = ServerConfig(
        bundles=bundles,
        listen=listen,
        metrics=metrics,
        http=None if http in {"", "none"} else http,
        http_cors=tuple(http_cors or ()),
        tei_model=tei_model,
        admin=admin,
        watch_seconds=watch,
        tls=_tls(tls_cert, tls_key, tls_client_ca),
        tokens=tokens,
        admin_tokens=admin_tokens,
        max_streams=max_streams,
        max_connection_seconds=max_connection_age,
        devices=devices,
        has_device_memory=device_memory,
        sampling=sampling,
        cuda_graphs=cuda_graphs,
        num_lanes=lanes or (min(threads or num_cores, MAX_LANES) if devices == ("cpu",) else 1),
        num_threads=threads or num_cores,
        num_slots=slots,
        num_prefix_slots=_prefix_slots(prefix_slots, slots, devices),
        shares_prefixes=share_prefixes,
        memory_budget=_memory_budget(memory_budget),
        max_length=max_length,
        max_batched_tokens=max_batched_tokens or BATCHED_TOKENS[parse_device(devices[0]).kind],
        max_padded_tokens=PADDED_TOKENS[parse_device(devices[0]).kind],
        max_queue=max_queue,
        max_queue_tokens=max_queue_tokens,
        client_tokens_per_second=client_tokens_per_second,
        client_burst_tokens=client_burst_tokens,
        stall_seconds=stall_seconds,
        stuck_seconds=stuck_seconds,
        grace_seconds=grace,
    )
    # The server runs the tokenizer in threads of its own.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        check_installation(device)
        # Imported after check_installation, whose message is clearer than an ImportError.
        from server.app import serve  # noqa: PLC0415

        status = uvloop.run(serve(config))
    except StartupError as error:
        log.error("%s", error)
        raise typer.Exit(1) from error
    raise typer.Exit(status)


def _prefix_slots(given: int | None, slots: int, devices: tuple[str, ...]) -> int:
    """A page of host memory is allocated when it is first used; device memory is, at once."""
    if given is not None:
        return given
    return slots if devices == ("cpu",) else 0


def _memory_budget(text: str) -> int | None:
    whole = container_bytes()
    if whole is None and text == "80%":  # the default
        return None
    try:
        return parse_bytes(text, whole)
    except ValueError as error:
        raise typer.BadParameter(f"--memory-budget: {error}") from error


def _tls(certificate: Path | None, key: Path | None, client_ca: Path | None) -> TlsFiles | None:
    if certificate is not None and key is not None:
        return TlsFiles(certificate=certificate, key=key, client_ca=client_ca)
    if certificate is not None or key is not None or client_ca is not None:
        raise typer.BadParameter("TLS needs both --tls-cert and --tls-key")
    return None


if __name__ == "__main__":
    typer.run(main)
