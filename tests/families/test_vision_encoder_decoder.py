"""Image encoders with text decoders (ViT-GPT2, TrOCR) against transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    BertConfig,
    DeiTConfig,
    GPT2Config,
    TrOCRConfig,
    VisionEncoderDecoderConfig,
    VisionEncoderDecoderModel,
    ViTConfig,
)

from export.errors import ExportError, SourceError, UnsupportedError, WeightsError
from export.sources import load_checkpoint
from model.bundle import Task
from tests.export.importers.support import edit_json, edit_weights
from tests.families.captions import check_eager, check_graphs
from tests.families.harness import VOCABULARY_SIZE, saved
from tests.families.images import SMALL, square_processor

GPT2: dict[str, Any] = {
    "vocab_size": VOCABULARY_SIZE,
    "n_positions": 96,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
TROCR: dict[str, Any] = {
    "vocab_size": VOCABULARY_SIZE,
    "d_model": 64,
    "decoder_layers": 2,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 96,
    "max_position_embeddings": 96,
}
ENCODERS: dict[str, Any] = {"vit": ViTConfig, "deit": DeiTConfig}
BERT: dict[str, Any] = {
    "vocab_size": VOCABULARY_SIZE,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 96,
}
DECODERS: dict[str, Any] = {
    "bert": (BertConfig, BERT),
    "gpt2": (GPT2Config, GPT2),
    "trocr": (TrOCRConfig, TROCR),
}


def model_of(
    encoder: str = "vit",
    decoder: str = "gpt2",
    image: dict[str, Any] | None = None,
    text: dict[str, Any] | None = None,
) -> Any:
    """A model with changes of the configurations of its image encoder and its text decoder."""
    config_class, sizes = DECODERS[decoder]
    config = VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        ENCODERS[encoder](**SMALL | (image or {})),
        config_class(**sizes | (text or {})),
        decoder_start_token_id=2,
        pad_token_id=0,
        eos_token_id=3,
    )
    return VisionEncoderDecoderModel(config=config)


IMAGES = st.fixed_dictionaries(
    {
        "hidden_size": st.sampled_from((32, 64, 96)),
        "num_hidden_layers": st.integers(1, 2),
        "hidden_act": st.sampled_from(("gelu", "relu")),
        "patch_size": st.sampled_from((4, 12)),
        "num_channels": st.sampled_from((1, 3)),
        "qkv_bias": st.booleans(),
    }
)


@settings(max_examples=10, deadline=None)
@given(
    st.sampled_from(("vit", "deit")),
    IMAGES,
    st.fixed_dictionaries(
        {
            "n_head": st.sampled_from((1, 2, 8, 16)),
            "n_inner": st.sampled_from((None, 80)),
            "activation_function": st.sampled_from(("gelu_new", "relu")),
            "scale_attn_weights": st.booleans(),
            "scale_attn_by_inverse_layer_idx": st.booleans(),
            "tie_word_embeddings": st.booleans(),
            "layer_norm_epsilon": st.sampled_from((1e-5, 1e-2)),
        }
    ),
)
def test_eager_gpt2_matches_transformers(
    encoder: str, image: dict[str, Any], text: dict[str, Any]
) -> None:
    model = model_of(encoder, "gpt2", image, text)
    check_eager(model, square_processor(24, image["num_channels"]))


@settings(max_examples=10, deadline=None)
@given(
    st.sampled_from(("vit", "deit")),
    IMAGES,
    st.booleans(),
    st.fixed_dictionaries(
        {
            "decoder_layers": st.integers(1, 3),
            "decoder_attention_heads": st.sampled_from((1, 2, 8)),
            "activation_function": st.sampled_from(("gelu", "relu")),
            "scale_embedding": st.booleans(),
            "use_learned_position_embeddings": st.booleans(),
            "layernorm_embedding": st.booleans(),
            "tie_word_embeddings": st.booleans(),
        }
    ),
)
def test_eager_trocr_matches_transformers(
    encoder: str, image: dict[str, Any], reads_its_size: bool, text: dict[str, Any]
) -> None:
    size = image["hidden_size"] if reads_its_size else None  # without it, there is a projection
    text = text | {"cross_attention_hidden_size": size}
    model = model_of(encoder, "trocr", image, text)
    check_eager(model, square_processor(24, image["num_channels"]))


@settings(max_examples=8, deadline=None)
@given(
    IMAGES,
    st.fixed_dictionaries(
        {
            "num_hidden_layers": st.integers(1, 3),
            "num_attention_heads": st.sampled_from((1, 8)),
            "hidden_act": st.sampled_from(("gelu", "relu")),
            "layer_norm_eps": st.sampled_from((1e-12, 1e-2)),
            "type_vocab_size": st.sampled_from((1, 2)),
        }
    ),
)
def test_eager_bert_matches_transformers(image: dict[str, Any], text: dict[str, Any]) -> None:
    model = model_of("vit", "bert", image, text)
    check_eager(model, square_processor(24, image["num_channels"]))


@pytest.mark.parametrize(
    ("family", "encoder", "decoder", "image", "text"),
    [
        ("ViT-BERT", "vit", "bert", {"hidden_size": 48}, {}),
        ("ViT-GPT2", "vit", "gpt2", {}, {}),
        ("ViT-GPT2", "vit", "gpt2", {"hidden_size": 48}, {}),
        ("TrOCR", "vit", "trocr", {"qkv_bias": False}, {"tie_word_embeddings": False}),
        (
            "TrOCR",
            "deit",
            "trocr",
            {"hidden_size": 96},
            {"cross_attention_hidden_size": 96, "use_learned_position_embeddings": False},
        ),
    ],
)
def test_graphs_match_transformers(
    family: str, encoder: str, decoder: str, image: dict[str, Any], text: dict[str, Any]
) -> None:
    check_graphs(family, model_of(encoder, decoder, image, text), square_processor(24))


def save(model: Any, folder: Path, side: int = 24) -> Path:
    with saved(model) as source:
        source.rename(folder / "model")
        source.mkdir()  # the context removes it
    square_processor(side).save_pretrained(folder / "model")
    return folder / "model"


def test_what_a_model_takes_and_says(tmp_path: Path) -> None:
    folder = save(model_of("deit", "trocr"), tmp_path)
    edit_json(folder / "generation_config.json", eos_token_id=5, bos_token_id=None)
    checkpoint = load_checkpoint(str(folder))
    special = checkpoint.special_tokens
    assert checkpoint.tasks == (Task.GENERATE,)
    assert (special.decoder_start, special.eos, special.pad) == (2, (5,), 0)
    assert not special.suppressed
    assert checkpoint.image is not None
    assert (checkpoint.image.height, checkpoint.image.num_tokens) == (24, 18)
    assert not checkpoint.config.reads_texts


def test_padding_without_a_position_is_suppressed(tmp_path: Path) -> None:
    model = model_of("vit", "trocr", text={"use_learned_position_embeddings": False})
    assert load_checkpoint(str(save(model, tmp_path))).special_tokens.suppressed == (0,)


@pytest.mark.parametrize(
    ("part", "changes", "error", "message"),
    [
        ("encoder", {"model_type": "donut-swin"}, UnsupportedError, "supported: vit, deit"),
        ("decoder", {"model_type": "mbart"}, UnsupportedError, "supported: bert, gpt2, trocr"),
        ("decoder", {"add_cross_attention": False}, UnsupportedError, "add_cross_attention False"),
        (
            "decoder",
            {"cross_attention_hidden_size": 32},
            UnsupportedError,
            "cross_attention_hidden_size 32",
        ),
        ("decoder", {"n_head": 5}, SourceError, "5 heads do not divide the size 64"),
        ("encoder", {"image_size": 48}, SourceError, "the image processor makes (24, 24)"),
    ],
)
def test_unusable_fields_are_named(
    tmp_path: Path, part: str, changes: dict[str, Any], error: type[ExportError], message: str
) -> None:
    model = model_of()
    folder = save(model, tmp_path)
    whole = model.config.to_dict()[part]
    edit_json(folder / "config.json", **{part: whole | changes})
    with pytest.raises(error) as caught:
        load_checkpoint(str(folder))
    assert message in str(caught.value)


def test_a_decoder_of_another_encoder_is_refused(tmp_path: Path) -> None:
    model = model_of(decoder="trocr", text={"cross_attention_hidden_size": 64})
    folder = save(model, tmp_path)
    text = model.config.to_dict()["decoder"]
    edit_json(folder / "config.json", decoder=text | {"cross_attention_hidden_size": 32})
    with pytest.raises(SourceError, match="is 32, but the encoder's vectors have 64 numbers"):
        load_checkpoint(str(folder))


def test_missing_and_unexpected_weights_are_listed(tmp_path: Path) -> None:
    folder = save(model_of(image={"hidden_size": 32}), tmp_path)
    edit_weights(folder, remove=("enc_to_dec_proj.bias",), add=("decoder.extra",))
    with pytest.raises(WeightsError) as caught:
        load_checkpoint(str(folder))
    assert str(caught.value).splitlines()[1:] == [
        "missing: enc_to_dec_proj.bias",
        "unexpected: decoder.extra",
    ]


def test_buffers_and_copies_of_older_versions_are_left_out(tmp_path: Path) -> None:
    model = model_of()
    folder = save(model, tmp_path)
    table = model.decoder.transformer.wte.weight.detach().clone()
    buffer = "decoder.transformer.h.0.crossattention.bias"
    values = {"decoder.lm_head.weight": table, buffer: torch.ones(1, 1, 4, 4)}
    edit_weights(folder, values=values)
    assert torch.equal(load_checkpoint(str(folder)).weights["embedding.tokens.weight"], table)


@pytest.mark.parametrize(
    ("decoder", "name"), [("gpt2", "lm_head.weight"), ("trocr", "output_projection.weight")]
)
def test_a_saved_output_matrix_is_used(tmp_path: Path, decoder: str, name: str) -> None:
    folder = save(model_of(decoder=decoder), tmp_path)
    own = torch.randn(VOCABULARY_SIZE, 64, generator=torch.Generator().manual_seed(1))
    edit_weights(folder, values={f"decoder.{name}": own})
    loaded = VisionEncoderDecoderModel.from_pretrained(folder)
    assert torch.equal(loaded.get_output_embeddings().weight, own)
    checkpoint = load_checkpoint(str(folder))
    assert not checkpoint.config.head.tied
    assert torch.equal(checkpoint.weights["head.output.weight"], own.T)
