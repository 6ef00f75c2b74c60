"""Mixtral and Qwen's mixtures of experts against transformers."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    MixtralConfig,
    MixtralForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from tests.export.importers.support import edit_json
from tests.families.gated import AXES, SMALL, WINDOWS
from tests.families.harness import check_eager, check_graphs

EXPERTS = st.sampled_from((3, 4))
QWEN = {
    "num_experts": EXPERTS,
    "num_experts_per_tok": st.integers(1, 3),
    "norm_topk_prob": st.booleans(),
    "decoder_sparse_step": st.integers(1, 2),
    "mlp_only_layers": st.sampled_from(([], [0], [1])),
}
QWEN2: dict[str, Any] = {
    **SMALL,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 80,
}


@settings(max_examples=10)
@given(
    st.fixed_dictionaries(
        AXES
        | {
            "num_local_experts": EXPERTS,
            "num_experts_per_tok": st.integers(1, 3),
            "sliding_window": st.none() | WINDOWS,
        }
    )
)
def test_mixtral_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(MixtralForCausalLM(MixtralConfig(**SMALL | changes)))


def test_mixtral_graphs_match_transformers() -> None:
    model = MixtralForCausalLM(MixtralConfig(**SMALL, num_local_experts=4))
    check_graphs("Mixtral", model)


@settings(max_examples=10)
@given(st.fixed_dictionaries(AXES | QWEN))
def test_qwen3_moe_eager_matches_transformers(changes: dict[str, Any]) -> None:
    sizes = {"moe_intermediate_size": 48, "head_dim": 16}
    check_eager(Qwen3MoeForCausalLM(Qwen3MoeConfig(**SMALL | sizes | changes)))


def test_qwen3_moe_graphs_match_transformers() -> None:
    sizes = {"moe_intermediate_size": 48, "head_dim": 16, "num_experts": 4}
    changes = {"num_experts_per_tok": 2, "decoder_sparse_step": 2}
    check_graphs("Qwen3 MoE", Qwen3MoeForCausalLM(Qwen3MoeConfig(**SMALL | sizes | changes)))


@settings(max_examples=15)
@given(
    changes=st.fixed_dictionaries(
        AXES
        | QWEN
        | {
            "max_window_layers": st.integers(0, 2),
            "qkv_bias": st.booleans(),
            "sliding_window": WINDOWS,
            "use_sliding_window": st.booleans(),
        }
    ),
    has_types=st.booleans(),
)
def test_qwen2_moe_eager_matches_transformers(changes: dict[str, Any], has_types: bool) -> None:
    """Also without layer_types, as in published folders."""
    model = Qwen2MoeForCausalLM(Qwen2MoeConfig(**QWEN2 | changes))
    types = model.config.layer_types if has_types else None
    check_eager(model, prepare=lambda folder: edit_json(folder / "config.json", layer_types=types))


def test_qwen2_moe_graphs_match_transformers() -> None:
    changes = {"decoder_sparse_step": 2, "norm_topk_prob": True}
    check_graphs("Qwen2 MoE", Qwen2MoeForCausalLM(Qwen2MoeConfig(**QWEN2 | changes)))
