"""Phi-3.5-MoE against transformers."""

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PhimoeConfig, PhimoeForCausalLM
from transformers.models.phimoe.modeling_phimoe import sparsemixer

from model.experts import sparse_mixer
from tests.families.gated import AXES, SMALL, WINDOWS
from tests.families.harness import check_eager, check_graphs

LONG = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5],
    "long_factor": [2.0] * 8,
    "short_mscale": 1.2,
    "long_mscale": 1.3,
    "original_max_position_embeddings": 90,
}
SIZES: dict[str, Any] = {**SMALL, "num_local_experts": 4, "router_jitter_noise": 0.2}


@settings(max_examples=12)
@given(
    st.fixed_dictionaries(
        AXES
        | {
            "attention_bias": st.booleans(),
            "lm_head_bias": st.booleans(),
            "num_local_experts": st.integers(2, 5),
            "rope_parameters": st.sampled_from((None, LONG)),
            "router_jitter_noise": st.sampled_from((0.01, 0.2)),
            "sliding_window": st.none() | WINDOWS,
        }
    )
)
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(PhimoeForCausalLM(PhimoeConfig(**SIZES | changes)))


def test_graphs_match_transformers() -> None:
    changes = {"attention_bias": True, "lm_head_bias": True, "rope_parameters": LONG}
    check_graphs("Phi-3.5-MoE", PhimoeForCausalLM(PhimoeConfig(**SIZES | changes)))


@settings(max_examples=40)
@given(seed=st.integers(0, 1000), noise=st.sampled_from((0.01, 0.2, 0.6)), shift=st.integers(-2, 2))
def test_weights_match_transformers(seed: int, noise: float, shift: int) -> None:
    scores = torch.randn(6, 5, generator=torch.Generator().manual_seed(seed)) + shift
    weights, chosen = sparsemixer(scores, noise, training=False)
    expected = torch.zeros_like(scores).scatter(-1, chosen, weights)
    torch.testing.assert_close(sparse_mixer(scores, noise), expected)
