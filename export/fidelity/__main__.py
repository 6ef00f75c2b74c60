"""The command line: ``python -m export.fidelity bundles/NAME/FP32 bundles/NAME/OTHER``."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from export.errors import ExportError
from export.fidelity.limits import exceeded_limits, limits_of
from export.fidelity.measure import figures, measure_fidelity
from export.fidelity.subject import GraphFolder, Subject
from model.bundle import BundleError, Device, Fidelity, Manifest
from model.bundle_files import read_manifest, to_json

app = typer.Typer(add_completion=False)
SAME_FIELDS = ("kind", "tasks", "special_tokens", "languages", "labels")


@app.command()
def compare(
    reference: Annotated[Path, typer.Argument(help="The folder of an fp32 bundle.")],
    other: Annotated[Path, typer.Argument(help="The folder of a bundle of the same model.")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compares two bundles of one model: the second with the first.

    Exports measure the errors of single matrices too, which need the graphs before conversion.
    """
    try:
        found = compare_bundles(reference.absolute(), other.absolute())
        manifest = read_manifest(other.absolute())
    except (BundleError, ExportError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error
    exceeded = exceeded_limits(found, limits_of(manifest.precision, manifest.kv_cache))
    if json:
        typer.echo(to_json(found).decode())
    else:
        table = Table("figure", manifest.label, box=None)
        for name, value in figures(found).items():
            table.add_row(name.replace("_", " "), value)
        Console().print(table)
    for sentence in exceeded:
        typer.echo(f"{manifest.precision}: {sentence}", err=True)


def compare_bundles(reference: Path, other: Path) -> Fidelity:
    """The fidelity of the bundle in ``other`` to that in ``reference``.

    Raises:
        BundleError: a bundle cannot be read.
        ExportError: they are not of one model, are not for a CPU, or there is nothing to compare.
    """
    manifests = [read_manifest(path) for path in (reference, other)]
    _check_same_model(*manifests)
    folders = [
        GraphFolder(path, manifest.graphs)
        for path, manifest in zip((reference, other), manifests, strict=True)
    ]
    subject = Subject.of_bundle(reference, manifests[0])
    found = measure_fidelity(subject, *folders, by_matrix=False)
    if found is None:
        raise ExportError(f"{manifests[0].label}: the model takes none of the texts")
    return found


def _check_same_model(reference: Manifest, other: Manifest) -> None:
    for manifest in (reference, other):
        if manifest.device != Device.CPU:
            raise ExportError(f"{manifest.label} is for {manifest.device}, not for a CPU")
    for field in SAME_FIELDS:
        values = [getattr(manifest, field) for manifest in (reference, other)]
        if values[0] != values[1]:
            raise ExportError(
                f"{reference.label} and {other.label} are not of one model: {field} is "
                f"{values[0]} and {values[1]}"
            )
    if reference.dimensions != other.dimensions:
        raise ExportError(f"{reference.label} and {other.label} have different dimensions")


if __name__ == "__main__":
    app()
