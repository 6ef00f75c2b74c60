"""Latent attention against transformers: DeepSeek-V2 and V3, GLM-4.7-Flash, MiniCPM3, Youtu."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    DeepseekV3Model,
    Glm4MoeLiteConfig,
    Glm4MoeLiteForCausalLM,
    MiniCPM3Config,
    MiniCPM3ForCausalLM,
    YoutuConfig,
    YoutuForCausalLM,
)

from export.errors import SourceError, UnsupportedError, WeightsError
from export.sources import load_checkpoint
from tests.export.importers.support import edit_json, edit_weights, save
from tests.families.gated import SMALL, with_choice_bias
from tests.families.harness import check_eager, check_graphs

LATENT: dict[str, Any] = SMALL | {
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "q_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}
YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 8.0,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 0.707,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 12,
}
ROPE: st.SearchStrategy[Any] = st.sampled_from(
    (None, YARN, YARN | {"mscale": 1.0}, {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4})
)
AXES: dict[str, st.SearchStrategy[Any]] = {
    "q_lora_rank": st.sampled_from((None, 32)),
    "qk_nope_head_dim": st.sampled_from((8, 16, 24)),
    "qk_rope_head_dim": st.sampled_from((8, 16)),
    "v_head_dim": st.sampled_from((8, 16, 40)),
    "attention_bias": st.booleans(),
    "tie_word_embeddings": st.booleans(),
    "rope_parameters": ROPE,
}
EXPERTS: dict[str, Any] = LATENT | {
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 2,
    "moe_intermediate_size": 48,
}
GROUPS = {"n_group": 4, "topk_group": 2, "first_k_dense_replace": 1}
DEEPSEEK_V2, DEEPSEEK_V3 = EXPERTS | GROUPS, EXPERTS | GROUPS
GLM = EXPERTS | {"mlp_layer_types": ["dense", "sparse"]}


@settings(max_examples=16)
@given(
    st.fixed_dictionaries(
        AXES
        | {
            "topk_method": st.sampled_from(("greedy", "group_limited_greedy")),
            "n_group": st.sampled_from((2, 8)),
            "routed_scaling_factor": st.sampled_from((1.0, 4.0)),
            "first_k_dense_replace": st.sampled_from((0, 1, 2)),
        }
    )
)
def test_deepseek_v2_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(DeepseekV2ForCausalLM(DeepseekV2Config(**DEEPSEEK_V2 | changes)))


def test_deepseek_v2_graphs_match_transformers() -> None:
    config = DeepseekV2Config(**DEEPSEEK_V2, topk_method="group_limited_greedy")
    check_graphs("DeepSeek-V2", DeepseekV2ForCausalLM(config))


@settings(max_examples=16)
@given(
    st.fixed_dictionaries(
        AXES
        | {
            "n_group": st.sampled_from((2, 4)),
            "norm_topk_prob": st.booleans(),
            "rope_interleave": st.booleans(),
            "first_k_dense_replace": st.sampled_from((0, 1, 2)),
        }
    )
)
def test_deepseek_v3_eager_matches_transformers(changes: dict[str, Any]) -> None:
    config = DeepseekV3Config(**DEEPSEEK_V3 | changes)
    check_eager(with_choice_bias(DeepseekV3ForCausalLM(config)))


@pytest.mark.parametrize("query_size", [None, 32])
def test_deepseek_v3_graphs_match_transformers(query_size: int | None) -> None:
    config = DeepseekV3Config(**DEEPSEEK_V3 | {"q_lora_rank": query_size}, rope_parameters=YARN)
    check_graphs("DeepSeek-V3", with_choice_bias(DeepseekV3ForCausalLM(config)))


def test_deepseek_v3_embedder_matches_transformers() -> None:
    check_eager(with_choice_bias(DeepseekV3Model(DeepseekV3Config(**DEEPSEEK_V3))))


@settings(max_examples=8)
@given(st.fixed_dictionaries(AXES | {"rope_interleave": st.booleans()}))
def test_glm4_moe_lite_eager_matches_transformers(changes: dict[str, Any]) -> None:
    config = Glm4MoeLiteConfig(**GLM | changes)
    check_eager(with_choice_bias(Glm4MoeLiteForCausalLM(config)))


def test_glm4_moe_lite_graphs_match_transformers() -> None:
    check_graphs(
        "GLM-4.7-Flash", with_choice_bias(Glm4MoeLiteForCausalLM(Glm4MoeLiteConfig(**GLM)))
    )


@settings(max_examples=8)
@given(st.fixed_dictionaries(AXES | {"rope_interleave": st.booleans()}))
def test_youtu_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(YoutuForCausalLM(YoutuConfig(**LATENT | changes)))


def test_youtu_graphs_match_transformers() -> None:
    check_graphs("Youtu-LLM", YoutuForCausalLM(YoutuConfig(**LATENT)))


@settings(max_examples=12)
@given(
    st.fixed_dictionaries(
        AXES
        | {
            "v_head_dim": st.sampled_from((None, 24)),
            "scale_emb": st.sampled_from((1, 12)),
            "scale_depth": st.sampled_from((None, 1.4)),
            "dim_model_base": st.sampled_from((None, 16)),
        }
    )
)
def test_minicpm3_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(MiniCPM3ForCausalLM(MiniCPM3Config(**LATENT | changes)))


def test_minicpm3_graphs_match_transformers() -> None:
    check_graphs("MiniCPM3", MiniCPM3ForCausalLM(MiniCPM3Config(**LATENT)))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"num_key_value_heads": 2}, SourceError, "num_key_value_heads is not"),
        ({"scoring_func": "softmax"}, UnsupportedError, "scoring_func 'softmax' is not"),
        ({"qk_rope_head_dim": 7}, SourceError, "odd number"),
        ({"n_group": 8}, SourceError, "cannot be chosen"),
    ],
)
def test_other_attentions_and_experts_are_refused(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    save(DeepseekV3ForCausalLM(DeepseekV3Config(**DEEPSEEK_V3)), tmp_path)
    edit_json(tmp_path / "config.json", **changes)
    with pytest.raises(error, match=message):
        load_checkpoint(str(tmp_path))


PREDICTOR = (
    f"model.layers.{LATENT['num_hidden_layers']}.enorm.weight"  # of the layer after the last
)


def test_layers_that_predict_further_tokens_are_left_out(tmp_path: Path) -> None:
    save(DeepseekV3ForCausalLM(DeepseekV3Config(**DEEPSEEK_V3)), tmp_path)
    edit_weights(tmp_path, add=(PREDICTOR,))
    assert load_checkpoint(str(tmp_path)).architecture == "DeepseekV3ForCausalLM"


def test_more_layers_than_the_configuration_has_are_refused(tmp_path: Path) -> None:
    save(DeepseekV2ForCausalLM(DeepseekV2Config(**DEEPSEEK_V2)), tmp_path)
    edit_weights(tmp_path, add=(PREDICTOR,))
    with pytest.raises(WeightsError, match=f"unexpected: {PREDICTOR}"):
        load_checkpoint(str(tmp_path))


def test_other_orders_of_layers_are_refused(tmp_path: Path) -> None:
    save(Glm4MoeLiteForCausalLM(Glm4MoeLiteConfig(**GLM)), tmp_path)
    edit_json(tmp_path / "config.json", mlp_layer_types=["sparse", "dense"])
    with pytest.raises(SourceError, match="mlp_layer_types are not dense, then sparse"):
        load_checkpoint(str(tmp_path))
