"""The command line of ``loadtest gpu-server``."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from loadtest.gpu.server_runs import CLIENTS, PARTS, ServerRequest, run_server


def gpu_server(
    out: Annotated[Path, typer.Option(help="Output file; an existing one is continued.")],
    bundles: Annotated[
        Path, typer.Option(exists=True, file_okay=False, help="Folder of bundles or skeletons.")
    ],
    device: Annotated[str, typer.Option(help="cuda, cuda:N or cpu.")] = "cuda",
    budget_s: Annotated[float, typer.Option(min=1, help="Time budget in seconds.")] = 540.0,
    soak_s: Annotated[float, typer.Option(min=1, help="Most seconds of the soak.")] = 300.0,
    duration: Annotated[float, typer.Option(min=0.1, help="Seconds of each load.")] = 3.0,
    clients: Annotated[str, typer.Option(help="Numbers of clients, by commas.")] = ",".join(
        map(str, CLIENTS)
    ),
    slots: Annotated[int, typer.Option(min=1, help="Of the server.")] = 256,
    too_many_slots: Annotated[
        int, typer.Option(min=1, help="Of a server whose cache does not fit.")
    ] = 4096,
    leave_mib: Annotated[
        int, typer.Option(min=0, help="Free memory of the GPU while another process has the rest.")
    ] = 64,
    longest: Annotated[
        int | None, typer.Option(min=1, help="Most prompt tokens; by default the tasks' own.")
    ] = None,
    only: Annotated[str, typer.Option(help=f"Some of {'|'.join(PARTS)}.")] = "|".join(PARTS),
    root: Annotated[Path, typer.Option(help="Folder of bundles and logs.")] = Path("build/gpu"),
) -> None:
    """Serve three models on this machine's GPU: load, out of memory, kill, and a soak."""
    parts = tuple(only.split("|"))
    if unknown := sorted(set(parts) - set(PARTS)):
        raise typer.BadParameter(f"there is no {', '.join(unknown)}", param_hint="--only")
    request = ServerRequest(
        device=device,
        bundles=bundles.absolute(),
        out=out,
        root=root.absolute(),
        budget_seconds=budget_s,
        soak_seconds=soak_s,
        seconds=duration,
        clients=tuple(map(int, clients.split(","))),
        slots=slots,
        too_many_slots=too_many_slots,
        leave_bytes=leave_mib << 20,
        longest=longest,
        parts=parts,
    )
    if not run_server(request, Console(stderr=True)):
        raise typer.Exit(1)
