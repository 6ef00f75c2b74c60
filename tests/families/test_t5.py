"""T5 (v1.0, v1.1, Flan-T5, mT5, umT5) against transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    MT5Config,
    MT5ForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
    UMT5Config,
    UMT5ForConditionalGeneration,
)

from export.errors import UnsupportedError
from export.sources import load_checkpoint
from tests.export.importers.support import edit_json, save
from tests.families.harness import VOCABULARY_SIZE, check_eager, check_graphs

SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY_SIZE,
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 96,
    "num_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
    "decoder_start_token_id": 0,
}


def t5(*, tied: bool = True, **changes: Any) -> Any:
    config: Any = SMALL | changes | {"tie_word_embeddings": tied}
    model = T5ForConditionalGeneration(T5Config(**config))
    if not tied:
        model.lm_head.weight = torch.nn.Parameter(torch.zeros(VOCABULARY_SIZE, 64))
    return model


@settings(max_examples=12)
@given(
    st.booleans(),
    st.fixed_dictionaries(
        {
            "d_kv": st.sampled_from((8, 24)),
            "num_heads": st.sampled_from((1, 3)),
            "num_layers": st.integers(1, 3),
            "num_decoder_layers": st.sampled_from((None, 1)),
            "feed_forward_proj": st.sampled_from(("relu", "gated-gelu", "gated-silu", "gelu")),
            "relative_attention_num_buckets": st.sampled_from((4, 10, 32)),
            "relative_attention_max_distance": st.sampled_from((17, 128)),
            "layer_norm_epsilon": st.sampled_from((1e-6, 1e-2)),
        }
    ),
)
def test_eager_matches_transformers(tied: bool, changes: dict[str, Any]) -> None:
    check_eager(t5(tied=tied, **changes))


def test_graphs_match_transformers() -> None:
    check_graphs("T5", t5())


def test_v1_1_graphs_match_transformers() -> None:
    model = t5(tied=False, feed_forward_proj="gated-gelu", num_decoder_layers=1)
    check_graphs("T5 v1.1, Flan-T5", model)


def test_mt5_eager_matches_transformers() -> None:
    check_eager(MT5ForConditionalGeneration(MT5Config(**SMALL)))


def test_older_configurations_scale_tied_outputs(tmp_path: Path) -> None:
    model = t5()
    save(model, tmp_path)
    scaled = load_checkpoint(str(tmp_path)).weights["decoder.final_norm.weight"]
    edit_json(tmp_path / "config.json", scale_decoder_outputs=None, tie_word_embeddings=False)
    plain = load_checkpoint(str(tmp_path)).weights["decoder.final_norm.weight"]
    torch.testing.assert_close(scaled * 8, plain)  # 8 is the root of the hidden size
    edit_json(tmp_path / "config.json", tie_word_embeddings=True)
    again = load_checkpoint(str(tmp_path)).weights["decoder.final_norm.weight"]
    assert torch.equal(again, scaled)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"feed_forward_proj": "gated-quick_gelu", "dense_act_fn": None}, "feed_forward_proj"),
        ({"dense_act_fn": "quick_gelu"}, "dense_act_fn"),
        ({"is_causal": False}, "is_causal"),
        ({"relative_attention_num_buckets": 7}, "relative_attention_num_buckets"),
        ({"architectures": ["T5Model"]}, "architectures"),
    ],
)
def test_unsupported_configuration_is_rejected(
    tmp_path: Path, changes: dict[str, Any], field: str
) -> None:
    save(t5(), tmp_path)
    edit_json(tmp_path / "config.json", **changes)
    with pytest.raises(UnsupportedError, match=field):
        load_checkpoint(str(tmp_path))


@settings(max_examples=8)
@given(
    st.fixed_dictionaries(
        {
            "num_layers": st.integers(1, 3),
            "num_decoder_layers": st.sampled_from((None, 1)),
            "feed_forward_proj": st.sampled_from(("relu", "gated-gelu")),
            "relative_attention_num_buckets": st.sampled_from((4, 32)),
        }
    )
)
def test_umt5_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(UMT5ForConditionalGeneration(UMT5Config(**SMALL | changes)))


def test_umt5_graphs_match_transformers() -> None:
    check_graphs("umT5", UMT5ForConditionalGeneration(UMT5Config(**SMALL)))
