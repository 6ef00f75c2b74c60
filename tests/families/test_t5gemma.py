"""T5Gemma against transformers."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import T5GemmaConfig, T5GemmaForConditionalGeneration

from export.errors import SourceError, UnsupportedError
from export.sources import load_checkpoint
from tests.export.importers.support import edit_json, save
from tests.families.gated import SMALL, WINDOWS, layer_types
from tests.families.harness import check_eager, check_graphs

CAPS = st.none() | st.sampled_from((0.5, 5.0))
STACK: dict[str, st.SearchStrategy[Any]] = {
    "num_key_value_heads": st.sampled_from((1, 2, 4)),
    "head_dim": st.sampled_from((16, 32)),
    "num_hidden_layers": st.just(2),
    "rms_norm_eps": st.sampled_from((1e-6, 1e-2)),
    "attention_bias": st.booleans(),
    "query_pre_attn_scalar": st.sampled_from((16, 100)),
    "sliding_window": WINDOWS,
    "layer_types": st.none() | layer_types(),
    "attn_logit_softcapping": CAPS,
    "final_logit_softcapping": CAPS,
    "hidden_activation": st.sampled_from(("gelu_pytorch_tanh", "gelu")),
}


def t5gemma(
    encoder: dict[str, Any], decoder: dict[str, Any], *, tied: bool = True
) -> T5GemmaForConditionalGeneration:
    config = T5GemmaConfig(
        encoder=SMALL | encoder,
        decoder=SMALL | decoder,
        vocab_size=SMALL["vocab_size"],
        tie_word_embeddings=tied,
    )
    return T5GemmaForConditionalGeneration(config)


@settings(max_examples=16)
@given(st.fixed_dictionaries(STACK), st.fixed_dictionaries(STACK), st.booleans())
def test_eager_matches_transformers(
    encoder: dict[str, Any], decoder: dict[str, Any], tied: bool
) -> None:
    check_eager(t5gemma(encoder, decoder, tied=tied))


def test_graphs_match_transformers() -> None:
    changes = {"head_dim": 32, "sliding_window": 6, "attn_logit_softcapping": 2.0}
    check_graphs("T5Gemma", t5gemma(changes, changes | {"final_logit_softcapping": 5.0}))


@pytest.mark.parametrize(
    ("encoder", "error", "message"),
    [
        ({"hidden_size": 128}, UnsupportedError, "encoder of the size 128 and a decoder of 64"),
        ({"vocab_size": 70}, SourceError, "other vocabularies"),
    ],
)
def test_stacks_of_other_sizes_are_refused(
    tmp_path: Path, encoder: dict[str, Any], error: type[Exception], message: str
) -> None:
    save(t5gemma({}, {}), tmp_path)
    edit_json(tmp_path / "config.json", encoder=SMALL | encoder)
    with pytest.raises(error, match=message):
        load_checkpoint(str(tmp_path))
