"""RemBERT against transformers."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import RemBertConfig, RemBertModel

from export.errors import UnsupportedError
from export.sources import load_checkpoint
from tests.export.importers.support import edit_json, save
from tests.families.encoders import SEGMENTED, SMALL
from tests.families.harness import check_eager, check_graphs

SIZES: dict[str, Any] = {**SMALL, "input_embedding_size": 24, "output_embedding_size": 40}


@settings(max_examples=6)
@given(st.fixed_dictionaries({**SEGMENTED, "input_embedding_size": st.sampled_from((24, 64))}))
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(RemBertModel(RemBertConfig(**SIZES | changes)))


def test_graphs_match_transformers() -> None:
    check_graphs("RemBERT", RemBertModel(RemBertConfig(**SIZES)))


def test_tied_output_is_refused(tmp_path: Path) -> None:
    save(RemBertModel(RemBertConfig(**SIZES)), tmp_path)
    edit_json(tmp_path / "config.json", tie_word_embeddings=True)
    with pytest.raises(UnsupportedError, match="tie_word_embeddings True"):
        load_checkpoint(str(tmp_path))
