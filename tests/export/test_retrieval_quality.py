"""The quality of embedding models on held-out searches, against the eager model."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from export.bundle_writer import write_bundle
from export.checkpoint import Checkpoint, HeldOutSet
from model.bundle import EmbeddingKind, Precision, Task
from model.bundle_files import read_quality
from model.config import Kind
from model.examples import RankingExample
from model.initialise import random_weights
from model.late_interaction import document_ids, kept_tokens, query_ids
from model.transformer import Transformer
from tests.train.support import RECIPES
from train.architecture import model_config
from train.data.synthetic import capitals
from train.read_recipe import read_recipe
from train.recipe import ObjectiveKind
from train.retrieval_architecture import embedding_of, reading_of, with_retrieval_head
from train.tokenizer import special_tokens, train_tokenizer

MAX_LENGTH = 10  # cuts some documents
NUM_SEARCHES = 30


def _checkpoint(name: str) -> Checkpoint:
    """The model of a tiny recipe with random weights, and held-out searches."""
    recipe = read_recipe(RECIPES / f"{name}.toml")
    assert recipe.tokenizer is not None
    assert recipe.model is not None
    assert recipe.retrieval is not None
    rng = random.Random(5)
    examples = tuple(capitals(rng) for _ in range(NUM_SEARCHES))
    texts = [e.relevant for e in examples if isinstance(e, RankingExample)]
    tokenizer = train_tokenizer(recipe.tokenizer, Kind.ENCODER, texts)
    tokenizer.add_special_tokens(list(recipe.retrieval.markers))
    config = with_retrieval_head(
        model_config(recipe.model, ObjectiveKind.RETRIEVAL, tokenizer.get_vocab_size(), 0),
        recipe.retrieval,
    )
    special = special_tokens(Kind.ENCODER)
    reading = reading_of(recipe.retrieval, MAX_LENGTH, tokenizer, special)
    return Checkpoint(
        config=config,
        weights=random_weights(config, 3),
        tokenizer_json=tokenizer.to_str(),
        architecture="triune",
        tasks=(Task.EMBED, Task.RERANK),
        special_tokens=special,
        license="Apache-2.0",
        name=name,
        embedding=embedding_of(recipe.retrieval, config, reading),
        max_input_tokens=MAX_LENGTH,
        held_out=HeldOutSet("capitals", Task.EMBED, "0" * 64, examples),
    )


class _Eager:
    """Vectors of one text at a time, by the eager model."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        assert checkpoint.embedding is not None
        self.embedding = checkpoint.embedding
        self.model = Transformer(checkpoint.config)
        self.model.load_state_dict(checkpoint.weights)
        self.tokenizer = Tokenizer.from_str(checkpoint.tokenizer_json)

    def vectors(self, text: str, *, is_query: bool) -> Any:
        ids = self.tokenizer.encode(text).ids
        spec, kept, attended = self.embedding.multi_vector, None, None
        if spec is None:
            ids = ids if len(ids) <= MAX_LENGTH else [*ids[: MAX_LENGTH - 1], ids[-1]]
        elif is_query:
            ids, attended = query_ids(ids, spec)
        else:
            ids = document_ids(ids, spec)
            kept = kept_tokens(ids, spec)
        rows, lengths = torch.tensor([ids]), torch.tensor([len(ids)], dtype=torch.int32)
        short = None if attended is None else torch.tensor([attended], dtype=torch.int32)
        with torch.no_grad():
            hidden = self.model.encode(rows, lengths, torch.zeros_like(rows), short)
            found = self.model.pool(hidden, lengths)[0].numpy()
        return found if kept is None else found[kept]

    def similarity(self, query: Any, document: Any) -> float:
        if self.embedding.kind == EmbeddingKind.MULTI_VECTOR:
            return sum(max(float(q @ d) for d in document) for q in query)
        return float(query @ document)


@pytest.mark.parametrize("name", ["tiny-dense", "tiny-sparse", "tiny-colbert"])
def test_searches_are_ranked_by_the_models_own_similarity(name: str, tmp_path: Path) -> None:
    checkpoint = _checkpoint(name)
    assert checkpoint.held_out is not None
    write_bundle(checkpoint, tmp_path, precision=Precision.FP32, held_out=checkpoint.held_out)
    quality = read_quality(tmp_path / name / "1")
    assert quality is not None
    (measured,) = quality.measurements
    eager, ranks = _Eager(checkpoint), []
    for example in checkpoint.held_out.examples:
        assert isinstance(example, RankingExample)
        query = eager.vectors(example.query, is_query=True)
        relevant, *others = (
            eager.similarity(query, eager.vectors(text, is_query=False))
            for text in (example.relevant, *example.others)
        )
        ranks.append(1 + sum(other >= relevant for other in others))
    assert measured.task == Task.EMBED
    assert measured.num_examples == NUM_SEARCHES
    assert len(set(ranks)) > 2
    assert measured.metrics["recall_at_1"] == pytest.approx(ranks.count(1) / NUM_SEARCHES)
    assert measured.metrics["mrr"] == pytest.approx(float(np.mean([1 / rank for rank in ranks])))
