"""EuroBERT against transformers."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import EuroBertConfig, EuroBertForSequenceClassification, EuroBertModel

from export.errors import UnsupportedError
from export.sources import load_checkpoint
from tests.export.importers.support import edit_json, save
from tests.families.encoders import SMALL
from tests.families.harness import check_eager, check_graphs

IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "mask_token_id": 3}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
AXES = {
    "num_hidden_layers": st.integers(1, 3),
    "num_attention_heads": st.sampled_from((2, 8)),
    "num_key_value_heads": st.sampled_from((None, 1, 2)),
    "intermediate_size": st.sampled_from((48, 96)),
    "hidden_act": st.sampled_from(("silu", "gelu")),
    "rms_norm_eps": st.sampled_from((1e-5, 1e-2)),
    "attention_bias": st.booleans(),
    "mlp_bias": st.booleans(),
    "rope_parameters": st.sampled_from((None, LLAMA3)),
}


@settings(max_examples=8)
@given(st.fixed_dictionaries(AXES))
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(EuroBertModel(EuroBertConfig(**SMALL | IDS | changes)))


def test_graphs_match_transformers() -> None:
    config = EuroBertConfig(**SMALL | IDS, num_key_value_heads=2)
    check_graphs("EuroBERT", EuroBertModel(config))


def test_first_folders_name_the_pooling_otherwise(tmp_path: Path) -> None:
    save(EuroBertForSequenceClassification(EuroBertConfig(**SMALL | IDS)), tmp_path)
    edit_json(tmp_path / "config.json", classifier_pooling=None, clf_pooling="bos")
    assert not load_checkpoint(str(tmp_path)).config.head.pools_last
    edit_json(tmp_path / "config.json", clf_pooling="last")
    with pytest.raises(UnsupportedError, match="classifier_pooling 'last'"):
        load_checkpoint(str(tmp_path))
