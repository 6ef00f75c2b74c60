"""ModernBERT against transformers."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import ModernBertConfig, ModernBertModel

from export.errors import UnsupportedError
from export.sources import load_checkpoint
from tests.export.importers.support import edit_json, save
from tests.families.encoders import SMALL
from tests.families.harness import check_eager, check_graphs

SPECIAL = dict.fromkeys(("pad_token_id", "cls_token_id", "bos_token_id"), 1)
SPECIAL |= {"sep_token_id": 2, "eos_token_id": 2}
# Texts have up to 13 tokens: windows from none to all.
AXES = {
    "num_hidden_layers": st.integers(1, 4),
    "num_attention_heads": st.sampled_from((1, 2, 8)),
    "intermediate_size": st.sampled_from((48, 96)),
    "hidden_activation": st.sampled_from(("gelu", "silu")),
    "norm_eps": st.sampled_from((1e-5, 1e-2)),
    "norm_bias": st.booleans(),
    "attention_bias": st.booleans(),
    "mlp_bias": st.booleans(),
    "local_attention": st.sampled_from((0, 1, 2, 4, 6, 40)),
    "global_attn_every_n_layers": st.integers(1, 3),
    "global_rope_theta": st.sampled_from((160_000.0, 100.0)),
    "local_rope_theta": st.sampled_from((10_000.0, 50.0)),
}


@settings(max_examples=8)
@given(st.fixed_dictionaries(AXES))
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(ModernBertModel(ModernBertConfig(**SMALL | SPECIAL | changes)))


def test_graphs_match_transformers() -> None:
    config = ModernBertConfig(**SMALL | SPECIAL, local_attention=6)
    check_graphs("ModernBERT", ModernBertModel(config))


@pytest.mark.parametrize("window", [3, 64])
def test_another_sliding_window_is_refused(tmp_path: Path, window: int) -> None:
    """In ``transformers``, the field that comes last counts: it is half of ``local_attention``."""
    save(ModernBertModel(ModernBertConfig(**SMALL | SPECIAL, local_attention=4)), tmp_path)
    edit_json(tmp_path / "config.json", sliding_window=2)
    load_checkpoint(str(tmp_path))
    edit_json(tmp_path / "config.json", sliding_window=window)
    with pytest.raises(UnsupportedError, match=f"sliding_window {window} is not supported"):
        load_checkpoint(str(tmp_path))
