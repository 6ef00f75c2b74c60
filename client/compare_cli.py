"""The command ``compare``: models and decodings side by side."""

import json as json_format
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from client import flags, types
from client.compare import Comparison, parse_decoding
from client.compare import compare as run_all

app = typer.Typer()


@app.command()
def compare(
    context: typer.Context,
    model: Annotated[list[str], typer.Option(help="A model to compare; repeatable.")],
    text: flags.Texts = None,
    decoding: Annotated[
        list[str] | None,
        typer.Option(
            help="greedy (the default), beam[=SIZE], top-k[=K] or nucleus[=P]; repeatable.",
        ),
    ] = None,
    max_new_tokens: Annotated[
        int, typer.Option(help="Stop an output after this many tokens.")
    ] = 64,
    alignment: Annotated[
        bool,
        typer.Option(
            "--alignment/--no-alignment",
            help="Align the words of translations, by a second request each.",
        ),
    ] = True,
    seed: Annotated[int, typer.Option(min=0, help="Seed of top-k and nucleus sampling.")] = 0,
    json: flags.Json = False,
) -> None:
    """Run texts through several models or decodings, and print one table."""
    texts = flags.read_texts(text, sys.stdin)
    decodings = [parse_decoding(each) for each in decoding or ["greedy"]]
    options: types.GenerationOptions = {"max_new_tokens": max_new_tokens, "seed": seed}
    with context.obj.connect() as client:
        rows = run_all(client, model, decodings, texts, options, with_alignment=alignment)
    if json:
        outputs = [asdict(row) for row in rows]
        print(json_format.dumps({"comparisons": outputs}, ensure_ascii=False))
    else:
        write_comparisons(rows)


def write_comparisons(rows: Sequence[Comparison]) -> None:
    """Prints a table for each input, with a row for each model and decoding."""
    for text in dict.fromkeys(row.input for row in rows):
        table = Table(title=Text(text), title_justify="left")
        shown = [row for row in rows if row.input == text]
        is_aligned = any(row.alignment for row in shown)
        for name in ("model", "decoding", "output and alignment" if is_aligned else "output"):
            table.add_column(name, overflow="fold")
        for name in ("score", "tokens", "tokens/s", "cost/token"):
            table.add_column(name, justify="right")
        for row in shown:
            table.add_row(
                Text(row.model),
                row.decoding,
                Text("\n".join(filter(None, (row.output, _aligned(row))))),
                f"{row.score:.3f}",
                str(row.num_tokens),
                f"{row.tokens_per_second:.0f}",
                f"{row.model_seconds_per_token * 1000:.2f} ms",
            )
        Console().print(table)


def _aligned(row: Comparison) -> str:
    """``source→target target`` for each aligned word of the source."""
    return ", ".join(f"{each.source}→{' '.join(each.targets)}" for each in row.alignment)
