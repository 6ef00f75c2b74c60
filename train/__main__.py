"""The command line: ``python -m train RECIPE.toml --out FOLDER``; also under ``torchrun``."""

import os
from pathlib import Path
from shlex import quote
from typing import Annotated

import torch
import torch.distributed as dist
import typer
from rich.console import Console

from train.errors import TrainingError
from train.run import run_training

app = typer.Typer(add_completion=False)
console = Console(stderr=True, markup=False, emoji=False, highlight=False)


@app.command()
def train(
    recipe: Annotated[
        Path, typer.Argument(metavar="RECIPE", help="The recipe, a TOML file: docs/training.md.")
    ],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Write the checkpoint to FOLDER.")],
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of each process. Default: all cores.")
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Start again instead of continuing.")
    ] = False,
) -> None:
    """Trains a model. A training that was killed continues from its last checkpoint."""
    if threads is not None:
        torch.set_num_threads(threads)
    is_distributed = "WORLD_SIZE" in os.environ
    if is_distributed:
        dist.init_process_group("gloo")
    try:
        folder = run_training(recipe, out, restart=restart)
    except (TrainingError, OSError) as error:
        console.print(str(error), style="red", soft_wrap=True)
        raise typer.Exit(1) from error
    finally:
        if is_distributed:
            dist.destroy_process_group()
    if int(os.environ.get("RANK", "0")) == 0:
        command = f"triune export {quote(str(folder))} --out bundles/NAME"
        typer.echo(f"{folder}: export it with {command}")


if __name__ == "__main__":
    app()
