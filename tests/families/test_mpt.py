"""MPT against transformers."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import MptConfig, MptForCausalLM

from export.errors import UnsupportedError
from export.sources import load_checkpoint
from tests.export.importers.support import edit_json, save
from tests.families.harness import VOCABULARY_SIZE, check_eager, check_graphs

SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY_SIZE,
    "d_model": 96,
    "n_layers": 2,
    "n_heads": 6,  # not a power of two
    "max_seq_len": 96,
    "bos_token_id": 1,
    "eos_token_id": 1,
    "pad_token_id": 0,
}


@settings(max_examples=10)
@given(
    st.fixed_dictionaries(
        {
            "n_heads": st.sampled_from((2, 3, 6, 12)),
            "layer_norm_epsilon": st.sampled_from((1e-5, 1e-2)),
            "tie_word_embeddings": st.booleans(),
            "attn_config": st.fixed_dictionaries(
                {
                    "clip_qkv": st.sampled_from((None, 0.3)),
                    "softmax_scale": st.sampled_from((None, 0.5)),
                }
            ),
        }
    )
)
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(MptForCausalLM(MptConfig(**SMALL | changes)))


@pytest.mark.parametrize("clip", [None, 0.5])
def test_graphs_match_transformers(clip: float | None) -> None:
    check_graphs("MPT", MptForCausalLM(MptConfig(**SMALL, attn_config={"clip_qkv": clip})))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attn_config": {"qk_ln": True}}, "qk_ln True is not supported"),
        ({"attn_config": {"alibi": False}}, "alibi False is not supported"),
        ({"logit_scale": 0.5}, "logit_scale 0.5 is not supported"),
        ({"no_bias": False}, "no_bias False is not supported"),
    ],
)
def test_what_transformers_ignores_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    save(MptForCausalLM(MptConfig(**SMALL)), tmp_path)
    edit_json(tmp_path / "config.json", **changes)
    with pytest.raises(UnsupportedError, match=message):
        load_checkpoint(str(tmp_path))


def test_its_own_name_of_the_architecture_is_known(tmp_path: Path) -> None:
    save(MptForCausalLM(MptConfig(**SMALL)), tmp_path)
    edit_json(tmp_path / "config.json", architectures=["MPTForCausalLM"])
    assert load_checkpoint(str(tmp_path)).architecture == "MptForCausalLM"
