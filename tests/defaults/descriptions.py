"""Searches among the installed Debian packages: short descriptions find the long ones."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from client.sync import Client
from tests.defaults import references

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
