"""Prints embeddings (dense, sparse or token vectors) and their pairwise similarity."""

from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from client.encoder_types import Embedding, EmbeddingKind, EmbedResult
from client.render import counted, write_json
from client.similarity import kinds_of, only, similarity

_MAX_ROWS = 16
"""Most texts in the similarity matrix; a larger one does not fit a terminal."""
_MAX_TOKENS = 12


def write_embeddings(result: EmbedResult, texts: Sequence[str]) -> None:
    """Prints a line per text, and the similarity of each pair of up to 16 texts.

    If the embeddings have several kinds of vectors, all of it for each kind.
    """
    for kind in _shared_kinds(result):
        outputs = [only(output, kind) for output in result.outputs]
        _write_kind(result, outputs, texts)


def _shared_kinds(result: EmbedResult) -> tuple[EmbeddingKind, ...]:
    """The kinds that an output has. Only texts whose tokens are all skipped have none."""
    found = {kind for output in result.outputs for kind in kinds_of(output)}
    kinds = tuple(kind for kind in EmbeddingKind if kind in found)
    return kinds or (EmbeddingKind.MULTI_VECTOR,)


def _write_kind(result: EmbedResult, outputs: Sequence[Embedding], texts: Sequence[str]) -> None:
    print(
        f"{result.model}: {_size(outputs)}, {counted(result.usage.input_tokens, 'token')}, "
        f"{result.timing.total_seconds * 1000:.1f} ms"
    )
    for number, (output, text) in enumerate(zip(outputs, texts, strict=True), start=1):
        print(f"{number:>3}  {_shown(output)}  {text[:60]}")
    if 1 < len(outputs) <= _MAX_ROWS:
        _print_similarities(outputs)


def write_embeddings_json(result: EmbedResult) -> None:
    """Prints one JSON object. Outputs are dense vectors, sparse vectors or token vectors.

    An output with several kinds is an object of them by kind.
    """
    outputs = [_plain(output) for output in result.outputs]
    write_json(result.model, outputs, result.usage, result.timing)


def _plain(output: Embedding) -> object:
    kinds = kinds_of(output)
    if len(kinds) > 1:
        return {kind.value: _plain(only(output, kind)) for kind in kinds}
    if output.sparse is not None:
        return asdict(output.sparse)
    return output.values or [asdict(token) for token in output.tokens]


def _is_multi_vector(output: Embedding) -> bool:
    return output.sparse is None and not output.values


def _size(outputs: Sequence[Embedding]) -> str:
    first = outputs[0]
    if first.sparse is not None:
        return counted(len(outputs), "sparse vector")
    if _is_multi_vector(first):
        count = sum(len(output.tokens) for output in outputs)
        size = len(first.tokens[0].values) if first.tokens else 0
        vectors = f"{counted(count, 'vector')} of {counted(size, 'dimension')}"
        return f"{counted(len(outputs), 'text')}, {vectors}"
    return f"{counted(len(outputs), 'vector')} of {counted(len(first.values), 'dimension')}"


def _shown(output: Embedding) -> str:
    if output.sparse is not None:
        top = ", ".join(f"{token} {value:.2f}" for token, value in output.sparse.top(_MAX_TOKENS))
        more = len(output.sparse.values) - _MAX_TOKENS
        return f"[{top}, {more} more]" if more > 0 else f"[{top}]"
    if _is_multi_vector(output):
        return f"[{' '.join(token.token for token in output.tokens)}]"
    return f"[{' '.join(f'{value:+.4f}' for value in output.values[:4])} …]"


def _print_similarities(outputs: Sequence[Embedding]) -> None:
    first = outputs[0]
    measure = "cosine"
    if first.sparse is not None:
        measure = "dot product"
    elif _is_multi_vector(first):
        measure = "MaxSim of row"
    table = Table(measure, *[str(number + 1) for number in range(len(outputs))])
    for number, output in enumerate(outputs, start=1):
        scores = (similarity(output, other) for other in outputs)
        table.add_row(str(number), *[f"{score:.3f}" for score in scores])
    Console().print(table)
