"""BigBird against transformers, where its attention is full."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import BigBirdConfig, BigBirdForQuestionAnswering, BigBirdModel

from export.errors import UnsupportedError
from export.sources import load_checkpoint
from model.transformer import from_weights
from tests.export.importers.support import edit_json, randomise, save
from tests.families.encoders import SEGMENTED, SMALL
from tests.families.harness import check_eager, check_graphs

FULL: dict[str, Any] = {**SMALL, "attention_type": "original_full"}
# Full up to (5 + 2) * 3 tokens.
SPARSE: dict[str, Any] = {
    **SMALL,
    "attention_type": "block_sparse",
    "block_size": 3,
    "num_random_blocks": 1,
}
MAX_FULL = 21


@settings(max_examples=8)
@given(
    st.fixed_dictionaries(
        {**SEGMENTED, "use_bias": st.booleans(), "rescale_embeddings": st.booleans()}
    )
)
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(BigBirdModel(BigBirdConfig(**FULL | changes)))


def test_graphs_match_transformers() -> None:
    check_graphs("BigBird", BigBirdModel(BigBirdConfig(**FULL)))


@torch.no_grad()
def test_block_sparse_models_have_texts_with_full_attention_only(tmp_path: Path) -> None:
    model = randomise(BigBirdModel(BigBirdConfig(**SPARSE)))
    save(model, tmp_path)
    checkpoint = load_checkpoint(str(tmp_path))
    assert checkpoint.config.position.max_positions == MAX_FULL
    ids = torch.arange(4, 4 + MAX_FULL)[None]
    ours = from_weights(checkpoint.config, checkpoint.weights)
    lengths = torch.tensor([MAX_FULL], dtype=torch.int32)
    hidden = ours.encode(ids, lengths, torch.zeros_like(ids))
    expected = model(ids).last_hidden_state
    assert model.attention_type == "original_full"  # transformers has switched
    torch.testing.assert_close(hidden, expected, rtol=0, atol=1e-4)


def test_another_attention_is_refused(tmp_path: Path) -> None:
    save(BigBirdModel(BigBirdConfig(**FULL)), tmp_path)
    edit_json(tmp_path / "config.json", attention_type="linear")
    with pytest.raises(UnsupportedError, match="attention_type 'linear'"):
        load_checkpoint(str(tmp_path))


@torch.no_grad()
def test_question_answering_matches_transformers(tmp_path: Path) -> None:
    """Its head has a feed-forward. The logits of the question are masked by the server here."""
    separator = 3
    config = BigBirdConfig(**FULL | {"sep_token_id": separator})
    model = randomise(BigBirdForQuestionAnswering(config))
    save(model, tmp_path)
    checkpoint = load_checkpoint(str(tmp_path))
    question, context = [2, 10, 11, 12, separator], [20, 21, 22, 23, 24, 25, separator]
    ids = torch.tensor([question + context])
    types = torch.tensor([[0] * len(question) + [1] * len(context)])
    lengths = torch.tensor([ids.shape[1]], dtype=torch.int32)
    ours = from_weights(checkpoint.config, checkpoint.weights)
    logits = ours.pool(ours.encode(ids, lengths, types), lengths)[0]
    output = model(ids)
    expected = torch.stack([output.start_logits[0], output.end_logits[0]], -1)
    start = len(question)
    torch.testing.assert_close(logits[start:], expected[start:], rtol=0, atol=1e-4)
