"""How results look: one JSON object, or text for people."""

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TextIO

import numpy as np
from rich.console import Console
from rich.table import Table

from client import types

_MOST_COSINES = 16
"""A matrix of more rows than this fits no terminal."""


def write_json(
    model: str | None,
    outputs: Sequence[object],
    usage: types.Usage | None,
    timing: types.Timing | None,
    **more: object,
) -> None:
    """One line with the four keys of every result, and what was asked for besides."""
    row = {
        "model": model,
        "outputs": outputs,
        "usage": None if usage is None else asdict(usage),
        "timing": None if timing is None else asdict(timing),
        **more,
    }
    print(json.dumps(row, ensure_ascii=False))


def write_texts_json(results: Sequence[types.TextResult], *, token_ids: bool) -> None:
    """Several requests as one object: usage and timing are sums."""
    outputs = [output for result in results for output in result.outputs]
    usage, timing = results[0].usage, results[0].timing
    for result in results[1:]:
        usage, timing = usage + result.usage, timing + result.timing
    more = {"token_ids": [output.token_ids for output in outputs]} if token_ids else {}
    texts = [output.text for output in outputs]
    write_json(results[0].model, texts, usage, timing, **more)


def write_pieces(pieces: Iterable[types.Piece], out: TextIO) -> None:
    """Streams outputs in the order of the inputs, each ended by a newline and its token ids.

    The pieces of a batch come interleaved: those of the first unfinished output are
    written at once, the others wait for their turn.
    """
    current = 0
    waiting: dict[int, list[types.Piece]] = {}
    token_ids: list[int] = []
    for arrived in pieces:
        waiting.setdefault(arrived.index, []).append(arrived)
        while ready := waiting.pop(current, None):
            for piece in ready:
                out.write(piece.text)
                token_ids += piece.token_ids
            if ready[-1].finish_reason is None:
                break
            out.write(f"\n{token_ids}\n" if token_ids else "\n")
            token_ids = []
            current += 1
        out.flush()


def write_embeddings(result: types.EmbedResult, texts: Sequence[str]) -> None:
    """A line for each vector, and the cosine of each pair."""
    vectors = np.array([output.values for output in result.outputs])
    print(
        f"{result.model}: {len(vectors)} vectors of {vectors.shape[1]} dimensions, "
        f"{result.usage.input_tokens} tokens, {result.timing.total_seconds * 1000:.1f} ms"
    )
    for number, (vector, text) in enumerate(zip(vectors, texts, strict=True), start=1):
        first = " ".join(f"{value:+.4f}" for value in vector[:4])
        print(f"{number:>3}  [{first} …]  {text[:60]}")
    if 1 < len(vectors) <= _MOST_COSINES:
        _print_cosines(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def _print_cosines(units: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> None:
    table = Table("cosine", *[str(number + 1) for number in range(len(units))])
    for number, row in enumerate(units @ units.T, start=1):
        table.add_row(str(number), *[f"{value:.3f}" for value in row])
    Console().print(table)


def write_classifications(result: types.ClassifyResult, texts: Sequence[str]) -> None:
    """Each text with its labels, likeliest first."""
    for output, text in zip(result.outputs, texts, strict=True):
        labels = ", ".join(f"{row.label} {row.score:.3f}" for row in output.labels)
        print(f"{text[:60]}: {labels}")


def write_tokenizations(result: types.TokenizeResult) -> None:
    """Each text's tokens, with their ids, on a line."""
    for output in result.outputs:
        pairs = zip(output.tokens, output.token_ids, strict=True)
        print(" ".join(f"{token}:{token_id}" for token, token_id in pairs))


def write_models(models: Sequence[types.Model]) -> None:
    """A table, and the reason of each refusal under it."""
    table = Table("model", "version", "kind", "tasks", "architecture", "precision", "parameters")
    for model in models:
        table.add_row(
            model.name,
            model.version,
            model.kind or "",
            ", ".join(model.tasks),
            model.architecture,
            model.precision,
            f"{model.parameters:,}" if model.parameters else "",
        )
    Console().print(table)
    for model in models:
        if model.state is types.ModelState.REFUSED:
            print(f"{model.name} was refused: {model.failure}", file=sys.stderr)
