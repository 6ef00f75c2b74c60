"""Losses of queries and documents, against formulas in numpy and the heads of the bundle."""

import tomllib
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from model.bundle import EmbeddingKind, MultiVector, SpecialTokens
from model.config import HeadKind, Kind, ModelConfig, PoolingKind
from model.examples import RankingExample
from model.initialise import random_weights
from model.transformer import Transformer
from tests.train.support import RECIPES
from train.architecture import model_config, with_new_head
from train.batches import Row, TrainingBatch, make_batch
from train.errors import RecipeError
from train.read_recipe import parse_recipe, read_recipe
from train.recipe import ObjectiveKind, TokenizerKind, TokenizerRecipe
from train.regularization import TrainingKernels
from train.retrieval import RetrievalModule, flops, max_similarity, sparse_weights
from train.retrieval_architecture import embedding_of, reading_of, with_retrieval_head
from train.retrieval_recipe import RetrievalRecipe
from train.rows import TextRowEncoder
from train.tokenizer import MASK, special_tokens, train_tokenizer
from train.vocabulary import Vocabulary

VOCABULARY_SIZE, SKIPPED = 40, 9
READING = MultiVector(query_length=8, document_length=8, filler=MASK, skipped=(SKIPPED,))
# Both queries have one document in common: it is relevant to the second.
ROWS = [
    Row(
        inputs=[1, 5, 6, 2, MASK],
        targets=[0],
        num_attended=4,
        documents=[[1, 5, 6, 7, 2], [1, 8, 2], [1, 11, SKIPPED, 12, 2]],
    ),
    Row(inputs=[1, 11, 2], targets=[0], num_attended=2, documents=[[1, 8, 2], [1, 13, 2]]),
]
TARGETS = [0, 1]


def _model(recipe: RetrievalRecipe) -> Transformer:
    tiny = read_recipe(RECIPES / "tiny-colbert.toml").model
    assert tiny is not None
    config = model_config(tiny, ObjectiveKind.RETRIEVAL, VOCABULARY_SIZE, 0)
    model = Transformer(with_retrieval_head(config, recipe), TrainingKernels(0.0))
    model.load_state_dict(random_weights(model.config, 1))
    return model


def _module(recipe: RetrievalRecipe) -> RetrievalModule:
    return RetrievalModule(_model(recipe), TrainingKernels(0.0), recipe, READING).eval()


def _loss(module: RetrievalModule, batch: TrainingBatch) -> float:
    return float(module(batch, 0.0)[0][0].detach())


def _vectors(model: Transformer, rows: list[list[int]], attended: list[int]) -> list[Any]:
    """Each row alone, by the heads that are exported."""
    results = []
    for row, num_attended in zip(rows, attended, strict=True):
        ids, lengths = torch.tensor([row]), torch.tensor([len(row)], dtype=torch.int32)
        short = torch.tensor([num_attended], dtype=torch.int32)
        with torch.no_grad():
            hidden = model.encode(ids, lengths, torch.zeros_like(ids), short)
            results.append(model.pool(hidden, lengths)[0].double().numpy())
    return results


def _cross_entropy(scores: NDArray[np.float64]) -> float:
    logprobs = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    return -float(sum(logprobs[query, target] for query, target in enumerate(TARGETS)))


def _documents() -> list[list[int]]:
    return [[1, 5, 6, 7, 2], [1, 8, 2], [1, 11, SKIPPED, 12, 2], [1, 13, 2]]


def test_a_batch_has_each_document_once() -> None:
    batch = make_batch(ROWS)
    assert batch.documents is not None
    pairs = zip(*batch.documents, strict=True)
    found = [ids[:length].tolist() for ids, length in pairs]
    assert found == _documents()
    assert batch.targets[:, 0].tolist() == TARGETS
    assert batch.num_tokens == 2
    assert [row.length for row in ROWS] == [4 * 5, 3 * 3]


@pytest.mark.parametrize("pooling", [PoolingKind.MEAN, PoolingKind.CLS])
def test_the_loss_of_dense_vectors_is_that_of_all_documents(pooling: PoolingKind) -> None:
    recipe = RetrievalRecipe(vectors=EmbeddingKind.DENSE, pooling=pooling, size=16)
    module = _module(recipe)
    queries = np.stack(_vectors(module.model, [row.inputs for row in ROWS], [5, 3]))
    documents = np.stack(_vectors(module.model, _documents(), [5, 3, 5, 3]))
    assert np.linalg.norm(queries, axis=1) == pytest.approx(1, abs=1e-5)
    rows = [_attended(row) for row in ROWS]
    expected = _cross_entropy(queries @ documents.T / 0.05)
    assert _loss(module, make_batch(rows)) == pytest.approx(expected, rel=1e-4)


def _attended(row: Row) -> Row:
    """``row`` with all of its tokens attended to."""
    return replace(row, num_attended=len(row.inputs))


def test_the_loss_of_sparse_vectors_has_the_flops_regularizer() -> None:
    recipe = RetrievalRecipe(
        vectors=EmbeddingKind.SPARSE, temperature=3.0, query_flops=0.02, document_flops=0.03
    )
    module = _module(recipe)
    rows = [_attended(row) for row in ROWS]
    queries = np.stack(_vectors(module.model, [row.inputs for row in rows], [5, 3]))
    documents = np.stack(_vectors(module.model, _documents(), [5, 3, 5, 3]))
    assert queries.shape == (2, VOCABULARY_SIZE)
    regularizer = 0.02 * (queries.mean(0) ** 2).sum() + 0.03 * (documents.mean(0) ** 2).sum()
    expected = _cross_entropy(queries @ documents.T / 3.0) + 2 * regularizer
    assert _loss(module, make_batch(rows)) == pytest.approx(expected, rel=1e-4)
    assert flops(torch.from_numpy(queries)).item() == pytest.approx((queries.mean(0) ** 2).sum())


def test_the_regularizer_grows_quadratically_in_training_only() -> None:
    batch = make_batch([_attended(row) for row in ROWS])
    module = _module(
        RetrievalRecipe(vectors=EmbeddingKind.SPARSE, document_flops=0.5, flops_warmup_steps=10)
    )
    without = _loss(_module(RetrievalRecipe(vectors=EmbeddingKind.SPARSE)), batch)
    whole = _loss(module, batch) - without
    assert whole > 0.1
    module.train()
    for num_steps, share in ((0, 0.0), (5, 0.25), (10, 1.0), (50, 1.0)):
        module.num_steps = num_steps
        assert _loss(module, batch) - without == pytest.approx(share * whole, abs=1e-3)


def test_the_loss_of_token_vectors_is_of_the_best_of_each_token() -> None:
    """Masks that fill a query count, and attend without being attended to; skipped tokens don't."""
    recipe = RetrievalRecipe(vectors=EmbeddingKind.MULTI_VECTOR, size=8, fills_queries=True)
    module = _module(recipe)
    assert module.model.config.encoder is not None
    assert module.model.config.encoder.has_unattended
    queries = _vectors(module.model, [row.inputs for row in ROWS], [4, 2])
    documents = _vectors(module.model, _documents(), [5, 3, 5, 3])
    documents[2] = documents[2][[0, 1, 3, 4]]
    scores = np.array([[sum((d @ q).max() for q in query) for d in documents] for query in queries])
    assert _loss(module, make_batch(ROWS)) == pytest.approx(_cross_entropy(scores), rel=1e-4)


def test_padding_has_no_similarity() -> None:
    # Sums of both signs lose digits of float32.
    queries, documents = torch.randn(2, 3, 4).double(), torch.randn(5, 6, 4).double()
    is_query = torch.tensor([[True, True, True], [True, False, False]])
    is_document = torch.arange(6) < torch.tensor([1, 2, 3, 4, 6])[:, None]
    found = max_similarity(queries, is_query, documents, is_document)
    for q in range(2):
        for d in range(5):
            products = queries[q][is_query[q]] @ documents[d][is_document[d]].T
            assert found[q, d].item() == pytest.approx(products.amax(1).sum().item(), rel=1e-5)


def test_sparse_weights_and_their_gradient_are_those_of_the_head() -> None:
    model = _model(RetrievalRecipe(vectors=EmbeddingKind.SPARSE))
    with torch.no_grad():
        dict(model.named_parameters())["head.output.bias"].normal_()
    ids = torch.randint(3, VOCABULARY_SIZE, (4, 7))
    lengths = torch.tensor([7, 2, 5, 1], dtype=torch.int32)
    factors = torch.randn(4, VOCABULARY_SIZE)
    results = []
    for compute in (model.pool, lambda hidden, lengths: sparse_weights(model, hidden, lengths)):
        model.zero_grad(set_to_none=True)
        weights = compute(model.encode(ids, lengths, torch.zeros_like(ids)), lengths)
        (weights * factors).sum().backward()
        gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        results.append((weights.detach(), gradients))
    (expected, gradients), (actual, other) = results
    assert 0.2 < (expected > 0).float().mean() < 0.99
    torch.testing.assert_close(actual, expected)
    for name, gradient in gradients.items():
        torch.testing.assert_close(other[name], gradient, rtol=1e-4, atol=1e-5)


def _encoder(recipe: RetrievalRecipe, max_length: int) -> TextRowEncoder:
    texts = ["ab cd, ef. gh", "A? b"]
    tokenizer = train_tokenizer(
        TokenizerRecipe(kind=TokenizerKind.WORDPIECE, vocabulary_size=60), Kind.ENCODER, texts
    )
    tokenizer.add_special_tokens(list(recipe.markers))
    tokens = special_tokens(Kind.ENCODER)
    reading = reading_of(recipe, max_length, tokenizer, tokens)
    return TextRowEncoder(Vocabulary(tokenizer, tokens), (), reading)


def test_queries_are_filled_and_documents_cut() -> None:
    recipe = RetrievalRecipe(
        vectors=EmbeddingKind.MULTI_VECTOR,
        query_length=8,
        query_marker="[Q]",
        document_marker="[D]",
        fills_queries=True,
        skips_punctuation=True,
    )
    encoder = _encoder(recipe, 6)
    row = encoder.retrieval(RankingExample(query="ab", relevant="ab cd, ef gh", others=("cd",)))
    tokens = [encoder.vocabulary.tokenizer.id_to_token(id_) for id_ in row.inputs]
    assert tokens == ["<s>", "[Q]", "ab", "</s>", *["<mask>"] * 4]
    assert row.num_attended == 4
    documents = [
        [encoder.vocabulary.tokenizer.id_to_token(i) for i in ids] for ids in row.documents
    ]
    assert documents == [
        ["<s>", "[D]", "ab", "cd", ",", "</s>"],
        ["<s>", "[D]", "cd", "</s>"],
    ]
    assert encoder.reading is not None
    skipped = {encoder.vocabulary.tokenizer.id_to_token(id_) for id_ in encoder.reading.skipped}
    assert skipped == {",", ".", "?"}


def test_other_vectors_only_cut_texts() -> None:
    encoder = _encoder(RetrievalRecipe(vectors=EmbeddingKind.SPARSE), 5)
    row = encoder.retrieval(RankingExample(query="ab cd ef gh", relevant="ab", others=()))
    tokens = [encoder.vocabulary.tokenizer.id_to_token(id_) for id_ in row.inputs]
    assert tokens == ["<s>", "ab", "cd", "ef", "</s>"]
    assert row.num_attended == 5


def test_a_masked_language_model_becomes_sparse_with_all_of_its_weights() -> None:
    masked = read_recipe(RECIPES / "tiny-runs.toml")
    assert masked.model is not None
    start = model_config(masked.model, ObjectiveKind.MASKED, VOCABULARY_SIZE, 0)
    recipe = RetrievalRecipe(vectors=EmbeddingKind.SPARSE)
    config = with_retrieval_head(with_new_head(start, ObjectiveKind.RETRIEVAL, 0), recipe)
    assert config.head == msgspec.structs.replace(start.head, kind=HeadKind.SPARSE_EMBEDDING)
    assert _shapes(config) == _shapes(start)
    again = with_retrieval_head(with_new_head(config, ObjectiveKind.RETRIEVAL, 0), recipe)
    assert again == config
    reading = MultiVector(query_length=8, document_length=8)
    embedding = embedding_of(recipe, config, reading)
    assert (embedding.kind, embedding.size) == (EmbeddingKind.SPARSE, VOCABULARY_SIZE)


def _shapes(config: ModelConfig) -> dict[str, torch.Size]:
    return {name: weight.shape for name, weight in random_weights(config, 0).items()}


def test_a_tokenizer_to_start_from_needs_markers_and_masks() -> None:
    tokenizer = train_tokenizer(
        TokenizerRecipe(kind=TokenizerKind.CHARACTERS), Kind.ENCODER, ["ab"]
    )
    marked = RetrievalRecipe(vectors=EmbeddingKind.MULTI_VECTOR, query_marker="[unused0]")
    with pytest.raises(RecipeError, match=r"has no token \[unused0\]"):
        reading_of(marked, 8, tokenizer, SpecialTokens())
    filled = RetrievalRecipe(vectors=EmbeddingKind.MULTI_VECTOR, fills_queries=True)
    assert reading_of(filled, 8, tokenizer, SpecialTokens()).filler == MASK
    vocabulary = tokenizer.to_str().replace("<mask>", "<other>")
    with pytest.raises(RecipeError, match="has no mask"):
        reading_of(filled, 8, type(tokenizer).from_str(vocabulary), SpecialTokens())


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("tiny-dense", {"document_flops": 0.1}, "retrieval.document_flops"),
        ("tiny-dense", {"query_marker": "[Q]"}, "retrieval.query_marker"),
        ("tiny-dense", {"pooling": "patch_mean"}, "retrieval.pooling"),
        ("tiny-dense", {"temperature": 0.0}, "retrieval.temperature"),
        ("tiny-sparse", {"pooling": "mean"}, "retrieval.pooling"),
        ("tiny-sparse", {"size": 8}, "retrieval.size"),
        ("tiny-sparse", {"vectors": "words"}, "retrieval.vectors"),
        ("tiny-colbert", {"query_flops": 0.1}, "retrieval.query_flops"),
        ("tiny-colbert", {"query_length": 2}, "retrieval.query_length"),
        ("tiny-colbert", {"query_length": 33}, "retrieval.query_length"),
        ("tiny-colbert", {"document_marker": "[Q]"}, "retrieval.document_marker"),
        (
            "tiny-colbert",
            {"fills_queries": False, "attends_to_fillers": True},
            "retrieval.attends_to_fillers",
        ),
    ],
)
def test_conflicts_name_a_field(name: str, changes: dict[str, object], expected: str) -> None:
    values = tomllib.loads((RECIPES / f"{name}.toml").read_text("utf-8"))
    assert parse_recipe(values, "good.toml").retrieval is not None
    values["retrieval"] |= changes
    with pytest.raises(RecipeError, match=f"\n  {expected}: "):
        parse_recipe(values, "bad.toml")


def test_the_section_is_for_its_objective_alone() -> None:
    values = tomllib.loads((RECIPES / "tiny-dense.toml").read_text("utf-8"))
    with pytest.raises(RecipeError, match=r"\n  retrieval: not for objective relevance"):
        parse_recipe(values | {"objective": "relevance"}, "bad.toml")
    del values["retrieval"]
    with pytest.raises(RecipeError, match=r"\n  retrieval: missing"):
        parse_recipe(values, "bad.toml")
