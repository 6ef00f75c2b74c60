"""Scores of documents: MaxSim of documents without vectors, and bounds of its cost."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from model.bundle import EmbeddingKind
from server.app import make_backends
from server.config import ServerConfig
from server.engine.requests.busy_lanes import BusyLanes
from server.engine.requests.update import EncoderOutput
from server.errors import InvalidArgumentError
from server.models.registry import Model, load_bundle
from server.service.input_types import InputType, reader_of
from server.service.similarity import Query, Score, check_similarity_size, similarity
from server.text.windows import TokenizedText, Window
from tests.m3_models import M3, TOKEN_SIZE
from tests.retrieval_models import MULTI_VECTOR, SIZE, SPARSE, spec

KINDS = (EmbeddingKind.MULTI_VECTOR,)
RNG = np.random.default_rng(3)


@pytest.fixture(scope="module")
def models(retrieval_bundles: Path) -> dict[str, Model]:
    config = ServerConfig(bundles=retrieval_bundles)
    (backend,) = make_backends(config, BusyLanes())
    return {
        name: load_bundle(retrieval_bundles / name / "1", backend, 64)
        for name in (MULTI_VECTOR, SPARSE)
    }


def text(num_tokens: int) -> TokenizedText:
    ids = (7,) * num_tokens
    return TokenizedText((Window(ids, ids, 0, 0, num_tokens),), (), (), 0)


def vectors(num_tokens: int) -> EncoderOutput:
    rows = RNG.standard_normal((num_tokens, SIZE)).astype(np.float32)
    return EncoderOutput(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def score_of(model: Model, query: EncoderOutput) -> Score:
    window = text(len(query.vector)).windows[0]
    whole = Query(window, query, model, reader_of(model, None))
    return similarity(whole, {EmbeddingKind.MULTI_VECTOR: 1.0})


def test_a_document_without_vectors_has_the_lowest_score(models: dict[str, Model]) -> None:
    query = vectors(5)
    score = score_of(models[MULTI_VECTOR], query)
    window = text(3).windows[0]
    skipped = replace(window, token_ids=spec(MULTI_VECTOR).skipped[:3])
    assert score(skipped, vectors(3)) == pytest.approx(-5)
    opposite = EncoderOutput(-query.vector[:1])
    assert score(replace(window, token_ids=(7,)), opposite) > -5


def test_the_cost_is_bounded(models: dict[str, Model]) -> None:
    model = models[MULTI_VECTOR]
    documents = [text(1 << 14)] * 256  # 1 << 26 numbers
    check_similarity_size(text(128), documents, KINDS, model)
    for query, texts, unit in (
        (text(1), [*documents, text(1)], "numbers in vectors"),
        (text(129), documents, "products"),
    ):
        with pytest.raises(InvalidArgumentError, match=unit) as caught:
            check_similarity_size(query, texts, KINDS, model)
        assert caught.value.field == "documents"
    check_similarity_size(text(1), [*documents, text(1)], (EmbeddingKind.SPARSE,), models[SPARSE])


def test_the_cost_of_several_kinds_is_bounded(m3_bundles: Path) -> None:
    (backend,) = make_backends(ServerConfig(bundles=m3_bundles), BusyLanes())
    model = load_bundle(m3_bundles / M3 / "1", backend, 64)
    texts = [text(1 << 14)] * ((1 << 26) // (TOKEN_SIZE << 14) + 1)
    check_similarity_size(text(1), texts, (EmbeddingKind.DENSE, EmbeddingKind.SPARSE), model)
    with pytest.raises(InvalidArgumentError, match="numbers in vectors"):
        check_similarity_size(text(1), texts, (EmbeddingKind.DENSE, *KINDS), model)


def test_lengths_fit_the_server(models: dict[str, Model]) -> None:
    short = replace(models[MULTI_VECTOR], max_length=9)
    query, document = (reader_of(short, each) for each in InputType)
    assert query is not None
    assert document is not None
    assert (query.max_tokens, document.max_tokens) == (9, 9)
    assert reader_of(models[SPARSE], InputType.QUERY) is None


@pytest.mark.parametrize(("num_query_tokens", "num_tokens"), [(1, 1), (32, 180), (70, 3000)])
def test_blocks_give_the_sum_of_highest_products(
    models: dict[str, Model], num_query_tokens: int, num_tokens: int
) -> None:
    query, document = vectors(num_query_tokens), vectors(num_tokens)
    score = score_of(models[MULTI_VECTOR], query)
    expected = np.einsum("qd,nd->qn", query.vector, document.vector).max(1).sum()
    assert score(text(num_tokens).windows[0], document) == pytest.approx(float(expected), rel=1e-5)
