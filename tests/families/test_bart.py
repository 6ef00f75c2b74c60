"""BART and the families that share its weight names against transformers."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BlenderbotConfig,
    BlenderbotForConditionalGeneration,
    BlenderbotSmallConfig,
    BlenderbotSmallForConditionalGeneration,
    M2M100Config,
    M2M100ForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    MBartConfig,
    MBartForConditionalGeneration,
    PegasusConfig,
    PegasusForConditionalGeneration,
    PLBartConfig,
    PLBartForConditionalGeneration,
)

from export.errors import UnsupportedError, WeightsError
from export.sources import load_checkpoint
from model.bundle import Task
from tests.export.importers.support import edit_json, edit_weights, save
from tests.families.harness import VOCABULARY_SIZE, check_eager, check_graphs

FAMILIES: dict[str, Any] = {
    "Marian (OPUS-MT)": (MarianMTModel, MarianConfig),
    "BART": (BartForConditionalGeneration, BartConfig),
    "Blenderbot": (BlenderbotForConditionalGeneration, BlenderbotConfig),
    "BlenderbotSmall": (BlenderbotSmallForConditionalGeneration, BlenderbotSmallConfig),
    "mBART": (MBartForConditionalGeneration, MBartConfig),
    "PEGASUS": (PegasusForConditionalGeneration, PegasusConfig),
    "PLBART": (PLBartForConditionalGeneration, PLBartConfig),
    "M2M-100, NLLB": (M2M100ForConditionalGeneration, M2M100Config),
}
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY_SIZE,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 80,
    "max_position_embeddings": 96,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}


def model_of(family: str, **changes: Any) -> Any:
    model_class, config = FAMILIES[family]
    model = model_class(config(**SMALL | changes))
    if hasattr(model, "final_logits_bias"):  # a buffer: the harness leaves it at zero
        generator = torch.Generator().manual_seed(0)
        model.final_logits_bias.normal_(generator=generator)
    if family == "BlenderbotSmall":
        _scale_target_tokens(model.model.decoder)
    return model


def _scale_target_tokens(decoder: Any) -> None:
    """Scales the decoder's token embeddings, as training and transformers 4 do.

    transformers 5.23 scales only the encoder's.
    """
    scale = decoder.embed_scale
    decoder.embed_tokens.register_forward_hook(lambda _module, _inputs, output: output * scale)


@settings(max_examples=15)
@given(
    st.sampled_from(tuple(FAMILIES)),
    st.fixed_dictionaries(
        {
            "encoder_layers": st.integers(1, 3),
            "decoder_layers": st.integers(1, 3),
            "encoder_attention_heads": st.sampled_from((1, 2, 8)),
            "decoder_attention_heads": st.sampled_from((1, 4)),
            "scale_embedding": st.booleans(),
            "activation_function": st.sampled_from(("relu", "gelu", "swish")),
            "pad_token_id": st.integers(0, 3),
        }
    ),
)
def test_eager_matches_transformers(family: str, changes: dict[str, Any]) -> None:
    check_eager(model_of(family, **changes))


@pytest.mark.parametrize("family", FAMILIES)
def test_graphs_match_transformers(family: str) -> None:
    check_graphs(family, model_of(family, scale_embedding=True))


def test_special_tokens_and_tasks(tmp_path: Path) -> None:
    save(model_of("BART"), tmp_path)
    edit_json(
        tmp_path / "generation_config.json",
        eos_token_id=[2, 3],
        bad_words_ids=[[7]],
        forced_bos_token_id=5,
    )
    checkpoint = load_checkpoint(str(tmp_path))
    special = checkpoint.special_tokens
    assert (special.eos, special.decoder_start, special.suppressed) == ((2, 3), 2, (1, 7))
    assert special.forced_first == 5
    assert checkpoint.tasks == (Task.GENERATE,)


ENCODER_POSITIONS = "model.encoder.embed_positions.weight"
OLD_POSITIONS = "model.decoder.embed_positions.weights"
# A table that older versions saved besides what the model uses.
DROPPED = (
    ("Marian (OPUS-MT)", "lm_head.weight", lambda model: model.model.shared.weight),
    (
        "Marian (OPUS-MT)",
        ENCODER_POSITIONS,
        lambda model: model.model.encoder.embed_positions.weight,
    ),
    ("PEGASUS", ENCODER_POSITIONS, lambda model: model.model.encoder.embed_positions.weight),
    ("PEGASUS", "model.decoder.embed_tokens.weight", lambda model: model.model.shared.weight),
    ("M2M-100, NLLB", OLD_POSITIONS, lambda model: model.model.decoder.embed_positions.weights),
)


@pytest.mark.parametrize(("family", "name", "table"), DROPPED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_dropped_tables_equal_what_replaces_them(
    family: str, name: str, table: Callable[[Any], torch.Tensor], dtype: torch.dtype, tmp_path: Path
) -> None:
    model = model_of(family)
    save(model, tmp_path)
    saved = table(model).detach().clone()
    edit_weights(tmp_path, values={name: saved.to(dtype)})
    loaded = load_checkpoint(str(tmp_path)).weights["embedding.tokens.weight"]
    assert torch.equal(loaded, model.model.shared.weight)
    saved[5] += 0.1
    edit_weights(tmp_path, values={name: saved.to(dtype)})
    with pytest.raises(WeightsError, match=re.escape(f"{name}, which")):
        load_checkpoint(str(tmp_path))
    edit_weights(tmp_path, values={name: saved[:, :4].clone()})
    with pytest.raises(WeightsError, match=re.escape(f"{name}, which")):
        load_checkpoint(str(tmp_path))


def test_sinusoids_of_a_family_with_learned_positions_are_unexpected(tmp_path: Path) -> None:
    save(model_of("BART"), tmp_path)
    edit_weights(tmp_path, add=(OLD_POSITIONS,))
    with pytest.raises(WeightsError, match=f"unexpected: {OLD_POSITIONS}"):
        load_checkpoint(str(tmp_path))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"tie_word_embeddings": False}, "tie_word_embeddings"),
        ({"is_causal": False}, "is_causal"),
        ({"share_encoder_decoder_embeddings": False}, "share_encoder_decoder_embeddings"),
        ({"decoder_vocab_size": 99}, "decoder_vocab_size"),
        ({"activation_function": "quick_gelu"}, "activation_function"),
        ({"architectures": ["MarianForCausalLM"]}, "MarianMTModel"),
    ],
)
def test_unsupported_configuration_is_rejected(
    tmp_path: Path, changes: dict[str, Any], field: str
) -> None:
    save(model_of("Marian (OPUS-MT)"), tmp_path)
    edit_json(tmp_path / "config.json", **changes)
    with pytest.raises(UnsupportedError, match=field):
        load_checkpoint(str(tmp_path))


def test_missing_and_unexpected_weights_are_named(tmp_path: Path) -> None:
    save(model_of("BART"), tmp_path)
    missing = "model.decoder.layers.1.encoder_attn.v_proj.bias"
    edit_weights(tmp_path, remove=(missing,), add=("model.extra",))
    with pytest.raises(WeightsError, match=rf"missing: {missing}\nunexpected: model.extra"):
        load_checkpoint(str(tmp_path))
