"""BLIP against transformers."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import BlipConfig, BlipForConditionalGeneration, BlipForQuestionAnswering
from transformers.models.blip.image_processing_pil_blip import BlipImageProcessorPil

from export.errors import ExportError, SourceError, UnsupportedError, WeightsError
from export.sources import load_checkpoint
from model.bundle import Task
from tests.export.importers.support import edit_json, edit_weights
from tests.families.captions import check_eager, check_graphs
from tests.families.harness import VOCABULARY_SIZE, saved
from tests.families.images import SMALL

IMAGE = {name: value for name, value in SMALL.items() if name != "num_channels"}
TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY_SIZE,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 96,
    "bos_token_id": 2,
    "sep_token_id": 3,
    "pad_token_id": 0,
}


def model_of(
    image: dict[str, Any] | None = None,
    text: dict[str, Any] | None = None,
    class_: Any = BlipForConditionalGeneration,
) -> Any:
    config = BlipConfig(vision_config=IMAGE | (image or {}), text_config=TEXT | (text or {}))
    model = class_(config)
    # The harness has one name for the decoder's inputs of all models.
    model.register_forward_pre_hook(_renamed, with_kwargs=True)
    return model


def _renamed(_model: Any, inputs: Any, named: dict[str, Any]) -> Any:
    ids = named.pop("decoder_input_ids", None)
    return inputs, named | ({} if ids is None else {"input_ids": ids})


def processor_of(side: int = 24) -> Any:
    return BlipImageProcessorPil(size={"height": side, "width": side})


@settings(max_examples=8, deadline=None)
@given(
    st.fixed_dictionaries(
        {
            "hidden_size": st.sampled_from((32, 64)),
            "num_hidden_layers": st.integers(1, 2),
            "hidden_act": st.sampled_from(("gelu", "relu")),
            "layer_norm_eps": st.sampled_from((1e-5, 1e-2)),
            "patch_size": st.sampled_from((4, 12)),
        }
    ),
    st.fixed_dictionaries(
        {
            "num_hidden_layers": st.integers(1, 3),
            "num_attention_heads": st.sampled_from((1, 8)),
            "hidden_act": st.sampled_from(("gelu", "relu")),
            "layer_norm_eps": st.sampled_from((1e-12, 1e-2)),
        }
    ),
)
def test_eager_matches_transformers(image: dict[str, Any], text: dict[str, Any]) -> None:
    check_eager(model_of(image, text), processor_of())


def test_graphs_match_transformers() -> None:
    check_graphs("BLIP", model_of({"hidden_size": 48}), processor_of())


def save(model: Any, folder: Path) -> Path:
    with saved(model) as source:
        source.rename(folder / "model")
        source.mkdir()  # the context removes it
    processor_of().save_pretrained(folder / "model")
    return folder / "model"


def test_what_a_model_takes_and_says(tmp_path: Path) -> None:
    folder = save(model_of(), tmp_path)
    edit_json(folder / "generation_config.json", bos_token_id=7, eos_token_id=8)
    checkpoint = load_checkpoint(str(folder))
    special = checkpoint.special_tokens
    assert checkpoint.tasks == (Task.GENERATE,)
    assert (special.decoder_start, special.eos, special.pad) == (2, (3,), 0)
    assert checkpoint.image is not None
    assert (checkpoint.image.height, checkpoint.image.num_tokens) == (24, 17)


@pytest.mark.parametrize(
    ("part", "changes", "error", "message"),
    [
        ("text_config", {"is_decoder": False}, UnsupportedError, "is_decoder False"),
        ("text_config", {"tie_word_embeddings": False}, UnsupportedError, "tie_word_embeddings"),
        ("text_config", {"encoder_hidden_size": 32}, UnsupportedError, "encoder_hidden_size 32"),
        ("text_config", {"num_attention_heads": 5}, SourceError, "5 heads do not divide"),
        ("vision_config", {"image_size": 48}, SourceError, "the image processor makes (24, 24)"),
    ],
)
def test_unusable_fields_are_named(
    tmp_path: Path, part: str, changes: dict[str, Any], error: type[ExportError], message: str
) -> None:
    model = model_of()
    folder = save(model, tmp_path)
    edit_json(folder / "config.json", **{part: model.config.to_dict()[part] | changes})
    with pytest.raises(error) as caught:
        load_checkpoint(str(folder))
    assert message in str(caught.value)


def test_other_classes_are_refused(tmp_path: Path) -> None:
    folder = save(model_of(class_=BlipForQuestionAnswering), tmp_path)
    with pytest.raises(UnsupportedError, match="supported: BlipForConditionalGeneration"):
        load_checkpoint(str(folder))


def test_missing_and_unexpected_weights_are_listed(tmp_path: Path) -> None:
    folder = save(model_of(), tmp_path)
    missing = "text_decoder.bert.encoder.layer.1.crossattention.self.key.bias"
    edit_weights(folder, remove=(missing,), add=("text_decoder.extra",))
    with pytest.raises(WeightsError) as caught:
        load_checkpoint(str(folder))
    assert str(caught.value).splitlines()[1:] == [
        f"missing: {missing}",
        "unexpected: text_decoder.extra",
    ]
