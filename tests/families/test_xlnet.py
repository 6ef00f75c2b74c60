"""XLNet against transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import XLNetConfig, XLNetForSequenceClassification, XLNetLMHeadModel, XLNetModel

from export.checkpoint import Checkpoint
from export.errors import UnsupportedError
from export.sources import load_checkpoint
from model.bundle import Task
from tests.export.importers.support import eager, edit_json, random_ids, randomise, save
from tests.families.harness import VOCABULARY_SIZE, check_eager, check_graphs

SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY_SIZE,
    "d_model": 64,
    "n_layer": 2,
    "n_head": 4,
    "d_inner": 80,
    "pad_token_id": 0,
}
LENGTHS = (9, 4)
TOLERANCE = 1e-4
CLASSES = {
    "ForSequenceClassification": Task.CLASSIFY,
    "ForTokenClassification": Task.TAG,
    "ForQuestionAnsweringSimple": Task.ANSWER,
}


@settings(max_examples=8)
@given(
    st.fixed_dictionaries(
        {
            "clamp_len": st.sampled_from((-1, 3)),
            "ff_activation": st.sampled_from(("gelu", "relu")),
            "layer_norm_eps": st.sampled_from((1e-12, 1e-2)),
            "n_head": st.sampled_from((1, 2, 16)),
            "n_layer": st.integers(1, 3),
        }
    )
)
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(XLNetModel(XLNetConfig(**SMALL | changes)))


def test_graphs_match_transformers() -> None:
    check_graphs("XLNet", XLNetModel(XLNetConfig(**SMALL)))


def segments_of(ids: Tensor) -> Tensor:
    """Of two texts and a class token, as the tokenizer gives them."""
    segments = torch.zeros_like(ids)
    segments[:, ids.shape[1] // 2 :] = 1
    segments[:, -1] = 2
    return segments


@torch.no_grad()
def ours(checkpoint: Checkpoint, ids: Tensor, segments: Tensor, lengths: Tensor) -> Tensor:
    model = eager(checkpoint)
    return model.pool(model.encode(ids, lengths, segments), lengths)


@torch.no_grad()
def theirs(model: Any, ids: Tensor, segments: Tensor) -> Tensor:
    output = model(ids, token_type_ids=segments)
    if "logits" in output:
        logits: Tensor = output.logits[0]
        return logits
    return torch.stack([output.start_logits[0], output.end_logits[0]], -1)


def check(model: Any, folder: Path, task: Task) -> None:
    """A padded batch with segments against each row alone of ``model``."""
    checkpoint = load_checkpoint(str(save(model, folder)))
    assert task in checkpoint.tasks
    ids = random_ids(2, 9)
    segments = torch.zeros_like(ids)
    for row, length in enumerate(LENGTHS):
        segments[row : row + 1, :length] = segments_of(ids[row : row + 1, :length])
    batched = ours(checkpoint, ids, segments, torch.tensor(LENGTHS, dtype=torch.int32))
    for row, length, actual in zip(range(2), LENGTHS, batched, strict=True):
        own = slice(row, row + 1)
        expected = theirs(model, ids[own, :length], segments[own, :length])
        valid = actual[:length] if actual.ndim == 2 else actual
        torch.testing.assert_close(valid, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("kind", CLASSES)
def test_heads_with_segments_match_transformers(kind: str, tmp_path: Path) -> None:
    labels = {"num_labels": 2 if CLASSES[kind] == Task.ANSWER else 3}
    model = getattr(transformers, f"XLNet{kind}")(XLNetConfig(**SMALL | labels))
    check(randomise(model), tmp_path, CLASSES[kind])


@pytest.mark.parametrize("kind", ["first", "mean"])
def test_summaries_match_transformers(kind: str, tmp_path: Path) -> None:
    config = XLNetConfig(**SMALL | {"num_labels": 3, "summary_type": kind})
    check(randomise(XLNetForSequenceClassification(config)), tmp_path, Task.CLASSIFY)


def test_a_language_model_embeds_without_its_head(tmp_path: Path) -> None:
    model = randomise(XLNetLMHeadModel(XLNetConfig(**SMALL)))
    checkpoint = load_checkpoint(str(save(model, tmp_path)))
    assert Task.EMBED in checkpoint.tasks
    ids = random_ids(1, 9)
    segments = segments_of(ids)
    with torch.no_grad():
        hidden = model.transformer(ids, token_type_ids=segments).last_hidden_state
    actual = ours(checkpoint, ids, segments, torch.tensor([9], dtype=torch.int32))
    torch.testing.assert_close(actual, hidden.mean(1), rtol=0, atol=TOLERANCE)


def test_a_sentence_piece_model_alone_is_refused(tmp_path: Path) -> None:
    folder = save(XLNetModel(XLNetConfig(**SMALL)), tmp_path)
    (folder / "tokenizer.json").rename(folder / "spiece.model")
    with pytest.raises(UnsupportedError, match=r"supported: tokenizer\.json"):
        load_checkpoint(str(folder))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("attn_type", "uni"),
        ("bi_data", True),
        ("summary_type", "cls_index"),
        ("summary_use_proj", False),
        ("summary_activation", "relu"),
    ],
)
def test_refuses_other_models(field: str, value: object, tmp_path: Path) -> None:
    save(XLNetForSequenceClassification(XLNetConfig(**SMALL)), tmp_path)
    edit_json(tmp_path / "config.json", **{field: value})
    with pytest.raises(UnsupportedError, match=field):
        load_checkpoint(str(tmp_path))
