"""LED against transformers, with the first token of each source global."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LEDConfig, LEDForConditionalGeneration

from export.errors import ExportError, SourceError, UnsupportedError
from export.sources import load_checkpoint
from tests.export.importers.support import edit_json, save
from tests.families.harness import check_eager, check_graphs
from tests.families.test_bart import SMALL

LED: dict[str, Any] = {
    **{name: value for name, value in SMALL.items() if name != "max_position_embeddings"},
    "max_encoder_position_embeddings": 160,
    "max_decoder_position_embeddings": 96,
    "attention_window": 4,  # texts have up to 13 tokens
}


def first_token_global(
    _module: Any, args: tuple[Any, ...], given: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The encoder's arguments, as LED's page in transformers' documentation gives them."""
    is_global = torch.zeros_like(given["input_ids"])
    is_global[:, 0] = 1
    return args, {**given, "global_attention_mask": is_global}


def model_of(**changes: Any) -> Any:
    model = LEDForConditionalGeneration(LEDConfig(**LED | changes))
    model.led.encoder.register_forward_pre_hook(first_token_global, with_kwargs=True)
    generator = torch.Generator().manual_seed(0)
    model.final_logits_bias.normal_(generator=generator)
    return model


@settings(max_examples=12)
@given(
    st.fixed_dictionaries(
        {
            "encoder_layers": st.just(2),
            "decoder_layers": st.integers(1, 3),
            "encoder_attention_heads": st.sampled_from((1, 2, 8)),
            "attention_window": st.sampled_from((4, 6, [4, 32], [32, 8])),
            "activation_function": st.sampled_from(("relu", "gelu")),
        }
    )
)
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(model_of(**changes))


def test_graphs_match_transformers() -> None:
    check_graphs("LED", model_of())


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"attention_window": [4, 4, 4]}, SourceError, "3 attention_window for 2 layers"),
        ({"attention_window": 5}, UnsupportedError, "is not even"),
        ({"max_encoder_position_embeddings": 64}, UnsupportedError, "up to those of the encoder"),
        ({"architectures": ["LEDForQuestionAnswering"]}, UnsupportedError, "LEDForQuestion"),
    ],
)
def test_unsupported_configuration_is_rejected(
    tmp_path: Path, changes: dict[str, Any], error: type[ExportError], message: str
) -> None:
    save(model_of(), tmp_path)
    edit_json(tmp_path / "config.json", **changes)
    with pytest.raises(error, match=message):
        load_checkpoint(str(tmp_path))
