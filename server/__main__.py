"""``python -m server``: the command line."""

import logging
import os
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from server.config import BATCHED_TOKENS, PADDED_TOKENS, SamplingPlace, ServerConfig, TlsFiles
from server.errors import StartupError
from server.installation import check_installation
from server.runtime.devices import parse_device, parse_devices

log = logging.getLogger("server")

# More batches side by side than this make each too small.
MAX_LANES = 4


def main(
    bundles: Annotated[
        Path, typer.Option(help="Folder of NAME/VERSION bundles.", exists=True, file_okay=False)
    ] = Path("bundles"),
    listen: Annotated[str, typer.Option(help="gRPC address, HOST:PORT.")] = "0.0.0.0:50051",
    metrics: Annotated[str, typer.Option(help="Prometheus address.")] = "0.0.0.0:9464",
    admin: Annotated[
        str | None,
        typer.Option(help="Address to load and unload models at, best on loopback; off."),
    ] = None,
    watch: Annotated[
        float | None,
        typer.Option(min=0.1, help="Look at the bundles every so many seconds; off."),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help="Certificate chain (PEM); read again when it changes.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="The certificate's key (PEM).")] = None,
    tls_client_ca: Annotated[
        Path | None, typer.Option(help="Clients need a certificate that this (PEM) vouches for.")
    ] = None,
    tokens: Annotated[
        Path | None,
        typer.Option(help="Calls need a bearer token of this file: TOKEN or NAME:TOKEN a line."),
    ] = None,
    admin_tokens: Annotated[
        Path | None, typer.Option(help="The same for the admin address; --tokens if not given.")
    ] = None,
    max_streams: Annotated[
        int, typer.Option(min=1, help="Calls at a time on one connection.")
    ] = 512,
    max_connection_age: Annotated[
        float | None, typer.Option(min=1, help="Seconds after which clients connect again; never.")
    ] = None,
    device: Annotated[
        str,
        typer.Option(help="cpu, cuda or cuda:N; cuda:0,cuda:1 serves each model on both."),
    ] = "cpu",
    device_memory: Annotated[
        bool, typer.Option(help="Keep states as a GPU does, also on a CPU.", hidden=True)
    ] = False,
    sampling: Annotated[
        SamplingPlace,
        typer.Option(help="Where tokens are chosen; auto: on a GPU there, else on the host."),
    ] = SamplingPlace.AUTO,
    cuda_graphs: Annotated[
        bool, typer.Option(help="Record a GPU's steps when a model is loaded, and play them back.")
    ] = True,
    lanes: Annotated[
        int | None,
        typer.Option(min=1, help="Batches side by side on a device: one; on the CPU, its cores."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of a run that is alone; all cores.")
    ] = None,
    slots: Annotated[
        int, typer.Option(min=1, help="Sequences that decode together, per model and lane.")
    ] = 32,
    max_length: Annotated[int, typer.Option(min=2, help="Tokens that a sequence may hold.")] = 2048,
    max_batched_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens that one step may read; 256, on a GPU 2048."),
    ] = None,
    max_queue: Annotated[
        int, typer.Option(min=0, help="Sequences that may wait, per model.")
    ] = 256,
    max_queue_tokens: Annotated[
        int, typer.Option(min=0, help="Tokens of sequences that may wait, per model.")
    ] = 1 << 19,
    client_tokens_per_second: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens that one client may ask for; no limit by default."),
    ] = None,
    client_burst_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens that it may ask for at once; a minute's by default."),
    ] = None,
    stall_seconds: Annotated[
        float, typer.Option(min=0.1, help="End a stream that is not read for so long.")
    ] = 30.0,
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds for calls in flight after SIGTERM.")
    ] = 30.0,
) -> None:
    """Serves bundles over gRPC until SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    num_cores = len(os.sched_getaffinity(0))
    try:
        devices = parse_devices(device)
    except StartupError as error:
        log.error("%s", error)
        raise typer.Exit(1) from error
    config = ServerConfig(
        bundles=bundles,
        listen=listen,
        metrics=metrics,
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
        max_length=max_length,
        max_batched_tokens=max_batched_tokens or BATCHED_TOKENS[parse_device(devices[0]).kind],
        max_padded_tokens=PADDED_TOKENS[parse_device(devices[0]).kind],
        max_queue=max_queue,
        max_queue_tokens=max_queue_tokens,
        client_tokens_per_second=client_tokens_per_second,
        client_burst_tokens=client_burst_tokens,
        stall_seconds=stall_seconds,
        grace_seconds=grace,
    )
    # Texts are split in threads of ours, or where they are read: no threads beside those.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        check_installation(device)
        # Where ONNX Runtime is not installed, there is nothing to import.
        from server.app import serve  # noqa: PLC0415

        status = uvloop.run(serve(config))
    except StartupError as error:
        log.error("%s", error)
        raise typer.Exit(1) from error
    raise typer.Exit(status)


def _tls(certificate: Path | None, key: Path | None, client_ca: Path | None) -> TlsFiles | None:
    if certificate is not None and key is not None:
        return TlsFiles(certificate=certificate, key=key, client_ca=client_ca)
    if certificate is not None or key is not None or client_ca is not None:
        raise typer.BadParameter("TLS needs both --tls-cert and --tls-key")
    return None


if __name__ == "__main__":
    typer.run(main)
