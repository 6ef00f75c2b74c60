"""DPR's encoders against transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import DPRConfig, DPRReader

from export.errors import UnsupportedError
from export.sources import load_checkpoint
from model.bundle import Task
from model.config import PoolingKind
from tests.export.importers.support import pooled, random_ids, save
from tests.families.encoders import SEGMENTED, SMALL
from tests.families.harness import check_eager, check_graphs, imported

ENCODERS = ("DPRContextEncoder", "DPRQuestionEncoder")


def encoder(name: str, **changes: Any) -> Any:
    return getattr(transformers, name)(DPRConfig(**SMALL | changes))


def hidden(model: Any, ids: Tensor) -> Tensor:
    """The classes themselves return the pooled vector alone."""
    base = model.base_model
    result: Tensor = base.bert_model(ids).last_hidden_state
    return result


def vector(model: Any, ids: Tensor) -> Tensor:
    result: Tensor = model(ids).pooler_output
    return result


@settings(max_examples=4)
@given(st.sampled_from(ENCODERS), st.fixed_dictionaries(SEGMENTED))
def test_eager_matches_transformers(name: str, changes: dict[str, Any]) -> None:
    check_eager(encoder(name, **changes), expected=hidden)


def test_graphs_match_transformers() -> None:
    check_graphs("DPR", encoder("DPRQuestionEncoder", projection_dim=24), expected=vector)


@torch.no_grad()
@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("size", [0, 24])
def test_vectors_match_transformers(name: str, size: int) -> None:
    model = encoder(name, projection_dim=size)
    with imported(model) as checkpoint:
        assert checkpoint.tasks == (Task.EMBED,)
        assert checkpoint.embedding is not None
        assert checkpoint.embedding.size == (size or 64)
        assert checkpoint.embedding.pooling == PoolingKind.CLS
        ids, lengths = random_ids(2, 9), torch.tensor([9, 4], dtype=torch.int32)
        actual = pooled(checkpoint, ids, lengths)
        for row, length, found in zip(ids, lengths, actual, strict=True):
            expected = vector(model, row[None, :length])[0]
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_the_reader_is_refused(tmp_path: Path) -> None:
    save(DPRReader(DPRConfig(**SMALL)), tmp_path)
    with pytest.raises(UnsupportedError, match="architectures 'DPRReader' is not supported"):
        load_checkpoint(str(tmp_path))
