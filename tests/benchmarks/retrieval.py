"""Retrieval quality: summaries of Debian packages retrieve the descriptions they are of.

    python -m tests.benchmarks.retrieval [--json docs/retrieval.json]
    python -m scripts.retrieval

Of the packages that the training of ``debian-splade`` and ``debian-colbert`` left out, every
description is a document; the summaries of the first of them are the searches. Vectors come from
the exported graphs in ONNX Runtime, fp32 and int8.
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from export.fidelity.subject import GraphFolder, Subject
from export.quality.model import Model
from export.quality.retrieval import Reader, embed, required_embedding
from loadtest.machine import machine
from model.bundle_files import read_manifest
from tests.benchmarks import reports
from tests.benchmarks.retrievers import (
    Scores,
    bm25_scores,
    bytes_per_document,
    cross_encoder_scores,
    dense_scores,
    fuse,
    quality,
    sparse_scores,
    token_scores,
)
from tests.benchmarks.translation import export_bundle
from train.data.debian_packages import relevance_parts

ROOT = Path(__file__).parents[2]
BUNDLES = ROOT / "build" / "retrieval"
PRECISIONS = ("fp32", "int8")
DENSE, SPARSE, MULTI_VECTOR = "minilm", "debian-splade", "debian-colbert"
SYSTEMS: dict[str, Callable[[Any, Any], Scores]] = {
    DENSE: dense_scores,
    SPARSE: sparse_scores,
    MULTI_VECTOR: token_scores,
}
DEPTH = 20  # documents that a cross-encoder orders


@dataclass(frozen=True, kw_only=True)
class Embedded:
    """The vectors of all texts by one model, and the seconds that its documents took."""

    queries: list[Any]
    documents: list[Any]
    seconds: float


def load_model(source: str, precision: str) -> Model:
    """The exported graphs of a default model, or of a checkpoint in a folder."""
    name = Path(source).name
    bundle = BUNDLES / f"{name}-{precision}" / name
    checkpoint = ROOT / "models" / name / "config.json"
    changed = next((p for p in (checkpoint, Path(source) / "config.json") if p.is_file()), None)
    export_bundle(source, bundle, precision, changed)
    manifest = read_manifest(bundle / "1")
    return Model(
        subject=Subject.of_bundle(bundle / "1", manifest),
        labels=manifest.labels,
        max_length_factor=1.0,
        embedding=manifest.embedding,
        graphs=GraphFolder(bundle / "1", manifest.graphs),
    )


def embed_texts(model: Model, queries: Sequence[str], documents: Sequence[str]) -> Embedded:
    """The vectors of ``queries`` and ``documents``; seconds of processor time."""
    reader = Reader(model.subject.tokenizer, required_embedding(model), model.subject.max_positions)
    of_queries = embed(model, {text: reader.query(text) for text in queries})
    started = time.process_time()
    of_documents = embed(model, {text: reader.document(text) for text in documents})
    seconds = time.process_time() - started
    return Embedded(
        queries=[of_queries[text] for text in queries],
        documents=[of_documents[text] for text in documents],
        seconds=seconds,
    )


def measure(num_queries: int, cross_encoder: str | None) -> dict[str, Any]:
    """The report: the quality of every way to search, in fp32 and int8."""
    packages = relevance_parts()[0]["held_out"]
    documents = [package.long for package in packages]
    queries = [package.short for package in packages[:num_queries]]
    lexical = bm25_scores(queries, documents)
    systems: dict[str, dict[str, Any]] = {"BM25": {"fp32": asdict(quality(lexical))}}
    for precision in PRECISIONS:
        scores: dict[str, Scores] = {}
        for source, score in SYSTEMS.items():
            model = load_model(source, precision)
            vectors = embed_texts(model, queries, documents)
            scores[source] = score(vectors.queries, vectors.documents)
            row = systems.setdefault(source, {})
            row["bytes_per_document"] = round(bytes_per_document(vectors.documents))
            row[f"{precision}_documents_per_second"] = round(len(documents) / vectors.seconds, 1)
        scores |= {
            f"BM25 + {DENSE}": fuse(lexical, scores[DENSE]),
            f"{SPARSE} + {DENSE}": fuse(scores[SPARSE], scores[DENSE]),
            f"{MULTI_VECTOR} + {DENSE}": fuse(scores[MULTI_VECTOR], scores[DENSE]),
        }
        if cross_encoder is not None:
            model = load_model(cross_encoder, precision)
            scores[f"{DENSE}, then {Path(cross_encoder).name}"] = cross_encoder_scores(
                model, queries, documents, scores[DENSE], DEPTH
            )
        for name, found in scores.items():
            systems.setdefault(name, {})[precision] = asdict(quality(found))
            print(f"{name}, {precision}: {systems[name]}", file=sys.stderr)
    return {
        "num_queries": len(queries),
        "num_documents": len(documents),
        "machine": machine()["processor"],
        "systems": [{"system": name, **row} for name, row in systems.items()],
    }


def main(
    out: Annotated[Path, typer.Option("--json", help="The report.")] = ROOT
    / "docs"
    / "retrieval.json",
    num_queries: Annotated[int, typer.Option("--queries", min=2)] = 500,
    cross_encoder: Annotated[
        str | None, typer.Option(help="A checkpoint that orders the best documents of minilm.")
    ] = None,
) -> None:
    """Measures every way to search."""
    reports.write(measure(num_queries, cross_encoder), out)


if __name__ == "__main__":
    typer.run(main)
