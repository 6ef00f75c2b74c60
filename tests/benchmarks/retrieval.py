"""Retrieval quality of embeddings: short descriptions of Debian packages retrieve the long ones.

    python -m tests.benchmarks.retrieval --bundles fp32=DIR --bundles int8=DIR --json OUT

Each DIR holds ``minilm``, which a server serves. PyTorch in fp32 is the reference. The texts are
those of the installed packages, so only figures of one machine can be compared.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray

from client.sync import Client
from loadtest.machine import machine
from tests.benchmarks import reports
from tests.defaults import references
from tests.serving import server_process

STATUS = Path("/var/lib/dpkg/status")
MAX_WORDS = 100
"""Longest text in words: well within the model's limit."""
_MIN_WORDS = 12
_FIELD = re.compile(r"^Description: (.+)\n((?: .*\n)+)", re.MULTILINE)
Vectors = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Retrieval:
    """``recall_at_1``: share of documents that rank first; ``mrr``: mean reciprocal rank."""

    recall_at_1: float
    mrr: float


def pairs(num: int, status: Path = STATUS) -> list[tuple[str, str]]:
    """Pairs of short and long descriptions, unique, in pseudo-random order."""
    long_by_short = {}
    for short, long in _FIELD.findall(status.read_text(encoding="utf-8") + "\n"):
        words = [word for word in long.split() if word != "."]
        if len(words) >= _MIN_WORDS:
            long_by_short[short] = " ".join(words[:MAX_WORDS])
    # Packages of one source share a description: keep only one of them.
    short_by_long = {long: short for short, long in long_by_short.items()}
    ordered = sorted(short_by_long, key=lambda long: hashlib.sha256(long.encode()).digest())
    return [(short_by_long[long], long) for long in ordered[:num]]


def retrieval(queries: Vectors, documents: Vectors) -> Retrieval:
    """Both are ``[N, H]`` and normalized; the document of query i is document i."""
    scores = queries @ documents.T
    own_scores = scores.diagonal()[:, None]
    ranks = 1 + (scores > own_scores).sum(1)
    return Retrieval(float((ranks == 1).mean()), float((1.0 / ranks).mean()))


def evaluate_server(client: Client, descriptions: Sequence[tuple[str, str]]) -> Retrieval:
    """Measures the embeddings of a server."""

    def embed(texts: Sequence[str]) -> Vectors:
        outputs = client.embed("minilm", texts).outputs
        return np.array([output.values for output in outputs], np.float32)

    return retrieval(
        embed([short for short, _ in descriptions]), embed([long for _, long in descriptions])
    )


def evaluate_pytorch(descriptions: Sequence[tuple[str, str]]) -> Retrieval:
    """Measures the reference."""
    queries, documents = zip(*descriptions, strict=True)
    return retrieval(references.minilm_embeddings(queries), references.minilm_embeddings(documents))


def main(
    out: Annotated[Path, typer.Option("--json")],
    bundles: Annotated[list[str], typer.Option(metavar="NAME=DIR")],
    num_pairs: Annotated[int, typer.Option("--pairs", min=2)] = 300,
) -> None:
    """Measures each of the bundles and the reference."""
    descriptions = pairs(num_pairs)
    figures = {"pytorch fp32": evaluate_pytorch(descriptions)}
    for named in bundles:
        name, _, folder = named.partition("=")
        with server_process(Path(folder)) as server, Client(server.target) as client:
            figures[name] = evaluate_server(client, descriptions)
    report = {
        "model": "minilm",
        "pairs": len(descriptions),
        "machine": machine()["processor"],
        "figures": {name: asdict(result) for name, result in figures.items()},
    }
    print(json.dumps(report, indent=2))
    reports.write(report, out)


if __name__ == "__main__":
    typer.run(main)
