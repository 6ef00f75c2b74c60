"""The command line: ``python -m export SOURCE --out bundles/NAME``."""

import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from export.adapters import parse_adapters, read_adapters
from export.bundle_path import bundle_path
from export.bundle_writer import write_bundle
from export.errors import ExportError, UnsupportedError
from export.fidelity.measure import figures
from export.precision_schemes import AUTO, choose_precision
from export.quality.choice import AUTO as AUTO_EVALUATION
from export.quality.choice import choose_held_out, summary
from export.scratch import sigterm_as_exception
from export.shortlists import AUTO as AUTO_SHORTLIST
from export.shortlists import OFF, choose_shortlist
from export.sources import DEFAULT_SOURCES, SHIPPED_SOURCES, load_checkpoint
from model.bundle import Device, EmbeddingKind, KvCache, Manifest, Parity, Precision
from model.bundle_files import read_manifest, read_parity, read_quality


class Tower(StrEnum):
    """The encoders of a model of images and texts."""

    IMAGE = "image"
    TEXT = "text"


class Vectors(StrEnum):
    """Vectors of models whose files do not say which they return."""

    SPARSE = EmbeddingKind.SPARSE


app = typer.Typer(add_completion=False)
console = Console(stderr=True, markup=False, emoji=False, highlight=False)


@app.command()
def export(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",  # brackets in a help text are markup for typer
            help="A folder, a file, hf:OWNER/NAME or hf:OWNER/NAME@REVISION from the Hugging Face "
            f"Hub, or one of: {', '.join([*DEFAULT_SOURCES, *SHIPPED_SOURCES])}.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(metavar="DIR/NAME", help="Write the bundle NAME to DIR/NAME/VERSION."),
    ],
    precision: Annotated[
        str,
        typer.Option(metavar="|".join([*Precision, AUTO]), help="Precision of the weights."),
    ] = AUTO,
    device: Annotated[Device, typer.Option(help="Device that will run the bundle.")] = Device.CPU,
    kv_cache: Annotated[
        KvCache, typer.Option(help="Type of a decoder's key/value cache.")
    ] = KvCache.FLOAT,
    version: Annotated[str, typer.Option(help="Version of the bundle.")] = "1",
    tower: Annotated[
        Tower | None,
        typer.Option(help="Part of a model of images and texts, such as CLIP."),
    ] = None,
    vectors: Annotated[
        Vectors | None,
        typer.Option(help="Read a masked language model as one of sparse vectors (SPLADE)."),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER|hf:OWNER/NAME",
            help="Model that a LoRA adapter changes; by default, the one that the adapter names.",
        ),
    ] = None,
    adapter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FOLDER|hf:OWNER/NAME",
            help="LoRA adapter to serve beside the model, as the model BUNDLE:NAME. Repeatable.",
        ),
    ] = None,
    shortlist: Annotated[
        str,
        typer.Option(
            metavar=f"{AUTO_SHORTLIST}|{OFF}|FILE",
            help="Shortlist of a translation model: its own, none, or Marian's binary FILE.",
        ),
    ] = AUTO_SHORTLIST,
    shortlist_from: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.tsv",
            help="Make the shortlist from parallel texts: source, tab, target on each line.",
        ),
    ] = None,
    evaluate: Annotated[
        str,
        typer.Option(
            metavar=f"{AUTO_EVALUATION}|{OFF}|FILE",
            help="Measure task quality through the graphs: on the checkpoint's own held-out set, "
            "not at all, or on the examples of FILE, JSON lines.",
        ),
    ] = AUTO_EVALUATION,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss", help="Write the bundle even if it loses more than its limits allow."
        ),
    ] = False,
) -> None:
    """Exports a trained checkpoint to an ONNX bundle, checked against PyTorch."""
    out = out.absolute()
    try:
        choice = choose_precision(precision, device)
    except UnsupportedError as error:
        raise typer.BadParameter(str(error), param_hint="--precision") from error
    console.print(f"precision {choice.precision} for {device}: {choice.reason}")
    if shortlist_from is not None and shortlist != AUTO_SHORTLIST:
        raise typer.BadParameter("needs --shortlist auto", param_hint="--shortlist-from")
    started = time.monotonic()
    description = TextColumn("{task.description}", markup=False)
    columns = (SpinnerColumn(), description, TimeElapsedColumn())
    try:
        bundle_path(out.parent, out.name, version)  # before a long download
        sources = parse_adapters(adapter or ())
        with sigterm_as_exception(), Progress(*columns, console=console) as progress:
            task = progress.add_task(f"{source}: read", total=None)

            def report(stage: str) -> None:
                progress.update(task, description=f"{source}: {stage}")
                if not console.is_terminal:  # a log file cannot update a line in place
                    seconds = time.monotonic() - started
                    line = f"{source}: {seconds:.0f} s: {stage}"
                    console.print(line, soft_wrap=True)

            kind = None if vectors is None else EmbeddingKind(vectors)
            checkpoint = load_checkpoint(source, tower, kind, base)
            if sources:
                report("read the adapters")
            adapters = read_adapters(sources, checkpoint, source, tower, kind)
            path = write_bundle(
                checkpoint,
                out.parent,
                name=out.name,
                version=version,
                precision=choice.precision,
                device=device,
                kv_cache=kv_cache,
                shortlist=choose_shortlist(checkpoint, shortlist, shortlist_from),
                progress=report,
                keep_weights=False,
                accept_loss=accept_loss,
                held_out=choose_held_out(checkpoint, evaluate),
                adapters=adapters,
            )
            progress.update(task, description=f"{source}: done", total=1, completed=1)
    except (ExportError, OSError) as error:
        line = f"{source}: {error}"
        console.print(line, style="red", soft_wrap=True)
        raise typer.Exit(1) from error
    parity = read_parity(path)
    typer.echo(
        f"{path}: max error {parity.max_absolute_error:.1e}{_greedy_tokens(parity)}, "
        f"min cosine {parity.min_cosine:.5f}{_perplexity(parity)}{_fidelity(parity)}"
        f"{_cache_size(read_manifest(path))}"
        f"{_shortlist(parity)}{_adapters(parity)}{summary(read_quality(path))}"
    )


def _greedy_tokens(parity: Parity) -> str:
    if not parity.greedy_tokens_compared:  # an encoder
        return ""
    return f", greedy tokens {parity.greedy_tokens_equal}/{parity.greedy_tokens_compared}"


def _perplexity(parity: Parity) -> str:
    if parity.perplexity is None or parity.fp32_perplexity is None:
        return ""
    ratio = parity.perplexity / parity.fp32_perplexity
    return (
        f", perplexity {parity.perplexity:.3f} over {parity.evaluation_tokens} tokens "
        f"({ratio:.4f} x fp32{_cache_perplexity(parity)})"
    )


def _fidelity(parity: Parity) -> str:
    if parity.fidelity is None:
        return ""
    found = (
        f"{name.replace('_', ' ')} {value}" for name, value in figures(parity.fidelity).items()
    )
    worst = parity.fidelity.worst_matrices[:1]
    matrices = [f"worst matrix {one.name} {one.relative_error:.3f}" for one in worst]
    return f"; compared with fp32: {', '.join([*found, *matrices])}"


def _cache_perplexity(parity: Parity) -> str:
    if parity.perplexity is None or parity.float_cache_perplexity is None:
        return ""
    return f", {parity.perplexity / parity.float_cache_perplexity:.4f} x float cache"


def _shortlist(parity: Parity) -> str:
    loss = parity.shortlist
    if loss is None:
        return ""
    text = (
        f", shortlist of {loss.mean_candidates:.0f} tokens: "
        f"{loss.num_identical}/{loss.num_sentences} sentences unchanged"
    )
    bleu = "" if loss.bleu is None else f", BLEU {loss.bleu:.1f}"
    return f"{text}, chrF {loss.chrf:.1f}{bleu}"


def _adapters(parity: Parity) -> str:
    return "".join(
        f"; adapter {one.name}: max error {one.max_absolute_error:.1e}, "
        f"min cosine {one.min_cosine:.5f}"
        for one in parity.adapters or ()
    )


def _cache_size(manifest: Manifest) -> str:
    graph = manifest.graphs.get("decode")
    if graph is None or not graph.cache_bytes_per_token:
        return ""
    return f", {graph.cache_bytes_per_token:,} cache bytes per token ({manifest.kv_cache})"


if __name__ == "__main__":
    app()
