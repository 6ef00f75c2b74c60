"""Gemma, Gemma 2, Gemma 3 and VaultGemma against transformers."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    GemmaForCausalLM,
    VaultGemmaConfig,
    VaultGemmaForCausalLM,
)

from tests.families.gated import AXES, SMALL, WINDOWS, layer_types
from tests.families.harness import check_eager, check_graphs

GEMMA = AXES | {"head_dim": st.sampled_from((16, 32)), "attention_bias": st.booleans()}
CAPS = st.none() | st.sampled_from((0.5, 5.0))
SANDWICHED = GEMMA | {
    "query_pre_attn_scalar": st.sampled_from((16, 100)),
    "sliding_window": WINDOWS,
    "layer_types": st.none() | layer_types(),
    "final_logit_softcapping": CAPS,
    "hidden_activation": st.sampled_from(("gelu_pytorch_tanh", "gelu")),
}
ROTARIES = {
    "full_attention": {"rope_type": "linear", "rope_theta": 50_000.0, "factor": 2.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
}


@settings(max_examples=10)
@given(st.fixed_dictionaries(GEMMA | {"hidden_act": st.sampled_from(("gelu", "relu"))}))
def test_gemma_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(GemmaForCausalLM(GemmaConfig(**SMALL | changes)))


def test_gemma_graphs_match_transformers() -> None:
    check_graphs("Gemma", GemmaForCausalLM(GemmaConfig(**SMALL, head_dim=32)))


@settings(max_examples=10)
@given(st.fixed_dictionaries(SANDWICHED | {"attn_logit_softcapping": CAPS}))
def test_gemma2_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(Gemma2ForCausalLM(Gemma2Config(**SMALL | changes)))


CAPPED: dict[str, Any] = {
    "attn_logit_softcapping": 2.0,
    "final_logit_softcapping": 5.0,
    "sliding_window": 6,
}


def test_gemma2_graphs_match_transformers() -> None:
    model = Gemma2ForCausalLM(Gemma2Config(**SMALL, **CAPPED, head_dim=32))
    check_graphs("Gemma 2", model)


@settings(max_examples=10)
@given(st.fixed_dictionaries(SANDWICHED | {"attn_logit_softcapping": CAPS}))
def test_vaultgemma_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(VaultGemmaForCausalLM(VaultGemmaConfig(**SMALL | changes)))


def test_vaultgemma_graphs_match_transformers() -> None:
    model = VaultGemmaForCausalLM(VaultGemmaConfig(**SMALL, **CAPPED, head_dim=32))
    check_graphs("VaultGemma", model)


@settings(max_examples=10)
@given(st.fixed_dictionaries(SANDWICHED | {"rope_parameters": st.none() | st.just(ROTARIES)}))
def test_gemma3_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(Gemma3ForCausalLM(Gemma3TextConfig(**SMALL | changes)))


def test_gemma3_graphs_match_transformers() -> None:
    types = ["sliding_attention", "full_attention"]
    config = Gemma3TextConfig(**SMALL, head_dim=32, sliding_window=6, layer_types=types)
    check_graphs("Gemma 3", Gemma3ForCausalLM(config))
