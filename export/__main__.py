"""The command line: ``python -m export SOURCE... --out DIR``."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from export.bundle_writer import write_bundle
from export.errors import ExportError
from export.sources import DEFAULT_SOURCES, load_checkpoint
from model.bundle import Precision, read_parity

app = typer.Typer(add_completion=False)
console = Console(stderr=True)


@app.command()
def export(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help=f"A folder, a file, or one of: {', '.join(DEFAULT_SOURCES)}.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Where bundles go, as NAME/VERSION.")],
    precision: Annotated[Precision, typer.Option(help="Of the weights.")] = Precision.FP32,
    name: Annotated[str | None, typer.Option(help="Of the bundle; default: the model's.")] = None,
    version: Annotated[str, typer.Option(help="Of the bundle.")] = "1",
) -> None:
    """Exports trained checkpoints to ONNX bundles, each checked against PyTorch."""
    if name is not None and len(sources) > 1:
        raise typer.BadParameter("one name cannot serve several sources", param_hint="--name")
    for source in sources:
        try:
            path = _export(source, out, precision, name, version)
        except ExportError as error:
            console.print(f"{source}: {error}", style="red", markup=False, highlight=False)
            raise typer.Exit(1) from error
        parity = read_parity(path)
        print(
            f"{path}: max error {parity.max_absolute_error:.1e}, greedy tokens "
            f"{parity.greedy_tokens_equal}/{parity.greedy_tokens_compared}, "
            f"min cosine {parity.min_cosine:.5f}"
        )


def _export(source: str, out: Path, precision: Precision, name: str | None, version: str) -> Path:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(f"{source}: read", total=None)

        def report(stage: str) -> None:
            progress.update(task, description=f"{source}: {stage}")

        path = write_bundle(
            load_checkpoint(source),
            out,
            name=name,
            version=version,
            precision=precision,
            progress=report,
        )
        progress.update(task, description=f"{source}: done", total=1, completed=1)
    return path


if __name__ == "__main__":
    app()
