"""Falcon against transformers."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import FalconConfig, FalconForCausalLM

from export.errors import UnsupportedError
from export.sources import load_checkpoint
from tests.export.importers.support import edit_json, save
from tests.families.harness import VOCABULARY_SIZE, check_eager, check_graphs

SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY_SIZE,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 96,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
# Falcon-7B is the default.
FALCON_40B = {"new_decoder_architecture": True, "num_kv_heads": 2}
FALCON_11B = FALCON_40B | {"num_ln_in_parallel_attn": 1}
SEQUENTIAL = {"multi_query": False, "parallel_attn": False}
FALCON_RW = SEQUENTIAL | {"alibi": True, "bias": True}


@settings(max_examples=16)
@given(
    st.sampled_from(({}, FALCON_40B, FALCON_11B, SEQUENTIAL, {"multi_query": False})),
    st.fixed_dictionaries(
        {
            "bias": st.booleans(),
            "ffn_hidden_size": st.sampled_from((None, 96)),
            "tie_word_embeddings": st.booleans(),
            "layer_norm_epsilon": st.sampled_from((1e-5, 1e-2)),
        }
    ),
)
def test_eager_matches_transformers(layout: dict[str, Any], changes: dict[str, Any]) -> None:
    check_eager(FalconForCausalLM(FalconConfig(**SMALL | layout | changes)))


def test_graphs_match_transformers() -> None:
    check_graphs("Falcon", FalconForCausalLM(FalconConfig(**SMALL)))


def test_graphs_of_grouped_queries_match_transformers() -> None:
    check_graphs("Falcon", FalconForCausalLM(FalconConfig(**SMALL | FALCON_40B)))


@settings(max_examples=6)
@given(st.sampled_from((2, 6, 12, 16)), st.booleans())
def test_alibi_matches_transformers(num_heads: int, parallel: bool) -> None:
    changes = {"hidden_size": 96, "num_attention_heads": num_heads, "parallel_attn": parallel}
    check_eager(FalconForCausalLM(FalconConfig(**SMALL | FALCON_RW | changes)))


def test_graphs_with_alibi_match_transformers() -> None:
    # Slopes that bfloat16 rounds.
    changes = {"hidden_size": 96, "num_attention_heads": 12}
    check_graphs("Falcon", FalconForCausalLM(FalconConfig(**SMALL | FALCON_RW | changes)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"apply_residual_connection_post_layernorm": True},
            "apply_residual_connection_post_layernorm True is not supported",
        ),
        ({"num_ln_in_parallel_attn": 2}, "num_ln_in_parallel_attn 2 is not supported"),
        (
            {"new_decoder_architecture": True, "parallel_attn": False},
            "new_decoder_architecture True is not supported",
        ),
    ],
)
def test_other_layouts_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    save(FalconForCausalLM(FalconConfig(**SMALL)), tmp_path)
    edit_json(tmp_path / "config.json", **changes)
    with pytest.raises(UnsupportedError, match=message):
        load_checkpoint(str(tmp_path))


def test_a_configuration_without_positions_has_those_of_training(tmp_path: Path) -> None:
    save(FalconForCausalLM(FalconConfig(**SMALL)), tmp_path)
    edit_json(tmp_path / "config.json", max_position_embeddings=None)
    assert load_checkpoint(str(tmp_path)).config.position.max_positions == 2048
