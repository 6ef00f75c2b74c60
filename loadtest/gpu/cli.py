"""The commands ``loadtest gpu``, ``gpu-models`` and ``gpu-server``."""

import re
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from loadtest.gpu.command import Request, pack_models, run_gpu
from loadtest.gpu.plan import PlanSize
from loadtest.gpu.server_runs import CLIENTS, PARTS, ServerRequest, run_server

OutputFile = Annotated[
    Path, typer.Option(dir_okay=False, help="Output file; an existing one is continued.")
]


def _device(text: str) -> str:
    if not re.fullmatch(r"cpu|cuda(:\d+)?", text):
        raise typer.BadParameter(f"{text!r} is none of cuda, cuda:N and cpu")
    return text


def gpu(
    out: OutputFile,
    device: Annotated[
        str,
        typer.Option(
            parser=_device, metavar="cuda|cuda:N|cpu", help="cpu only shows that everything works."
        ),
    ] = "cuda",
    sizes: Annotated[
        PlanSize, typer.Option(help="tiny: only the small models of the checks.")
    ] = PlanSize.FULL,
    budget_s: Annotated[float, typer.Option(min=1, help="Time budget in seconds.")] = 540.0,
    only: Annotated[
        str, typer.Option(help="Run only what has one of these parts in its name, separated by |.")
    ] = "",
    root: Annotated[Path, typer.Option(help="Folder of models and bundles.")] = Path("build/gpu"),
) -> None:
    """Check each kernel path on this machine's GPU against PyTorch, then compare with peers."""
    request = Request(
        device=device,
        sizes=sizes,
        budget_seconds=budget_s,
        out=out,
        root=root.absolute(),
        only=_parts(only),
    )
    if not run_gpu(request, Console(stderr=True)):
        raise typer.Exit(1)


def gpu_models(
    root: Annotated[Path, typer.Option(help="Folder of models and bundles.")] = Path("build/gpu"),
    only: Annotated[
        str, typer.Option(help="Only models with one of these parts in the name, separated by |.")
    ] = "",
) -> None:
    """Make what `gpu` needs, for another machine: of large models skeletons without weights."""
    pack_models(root.absolute(), _parts(only), Console(stderr=True))


def gpu_server(
    out: OutputFile,
    bundles: Annotated[
        Path, typer.Option(exists=True, file_okay=False, help="Folder of bundles or skeletons.")
    ],
    device: Annotated[str, typer.Option(parser=_device, metavar="cuda|cuda:N|cpu")] = "cuda",
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


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split("|") if part)
