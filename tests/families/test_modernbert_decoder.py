"""ModernBERT's decoder against transformers."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    ModernBertDecoderConfig,
    ModernBertDecoderForCausalLM,
    ModernBertDecoderForSequenceClassification,
)

from export.errors import UnsupportedError
from export.sources import load_checkpoint
from tests.export.importers.support import edit_json, save
from tests.families.gated import SMALL, layer_types
from tests.families.harness import check_eager, check_graphs, imported

SIZES: dict[str, Any] = {
    name: value for name, value in SMALL.items() if name != "num_key_value_heads"
} | {"cls_token_id": 1, "sep_token_id": 1, "local_attention": 12, "num_hidden_layers": 3}
ROTARIES = {
    "full_attention": {"rope_type": "linear", "rope_theta": 50_000.0, "factor": 2.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
}
BIASES = ("attention_bias", "classifier_bias", "decoder_bias", "mlp_bias", "norm_bias")


@settings(max_examples=12)
@given(
    st.fixed_dictionaries(
        {name: st.booleans() for name in BIASES}
        | {
            "hidden_activation": st.sampled_from(("gelu", "silu")),
            "layer_types": st.none() | layer_types(3),
            "local_attention": st.sampled_from((6, 7, 16)),
            "norm_eps": st.sampled_from((1e-5, 1e-2)),
            "rope_parameters": st.sampled_from((None, ROTARIES)),
            "tie_word_embeddings": st.booleans(),
        }
    )
)
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(ModernBertDecoderForCausalLM(ModernBertDecoderConfig(**SIZES | changes)))


def test_graphs_match_transformers() -> None:
    model = ModernBertDecoderForCausalLM(ModernBertDecoderConfig(**SIZES))
    check_graphs("ModernBERT decoder", model)


def test_reads_the_fields_of_older_files() -> None:
    rotaries: Any = {
        "full_attention": {"rope_type": "default", "rope_theta": 700.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
    }
    types = ["full_attention", "sliding_attention", "full_attention"]
    config = ModernBertDecoderConfig(**SIZES, rope_parameters=rotaries, layer_types=types)

    def prepare(folder: Path) -> None:
        edit_json(
            folder / "config.json",
            global_attn_every_n_layers=2,
            global_rope_theta=700.0,
            layer_types=None,
            local_rope_theta=300.0,
            rope_parameters=None,
            rope_theta=5.0,  # transformers ignores it
        )

    with (
        imported(ModernBertDecoderForCausalLM(config)) as written,
        imported(ModernBertDecoderForCausalLM(config), prepare=prepare) as read,
    ):
        assert read.config == written.config


def test_its_classifier_is_refused(tmp_path: Path) -> None:
    model = ModernBertDecoderForSequenceClassification(ModernBertDecoderConfig(**SIZES))
    save(model, tmp_path)
    with pytest.raises(UnsupportedError, match="a projection of the last hidden vectors"):
        load_checkpoint(str(tmp_path))
