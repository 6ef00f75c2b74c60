"""CLIP against transformers: its encoders of images and of texts, alone and as towers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, processors
from torch import Tensor, nn
from transformers import (
    CLIPConfig,
    CLIPForImageClassification,
    CLIPModel,
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    CLIPVisionConfig,
    CLIPVisionModel,
    CLIPVisionModelWithProjection,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from export.errors import SourceError, UnsupportedError
from export.parity_reference import TOLERANCE
from export.sources import load_checkpoint
from model.config import Activation, ModelConfig, StackConfig
from model.mixers import required
from model.transformer import from_weights
from tests.export.importers.support import WORDS, edit_json
from tests.families import harness
from tests.families.harness import imported
from tests.families.images import AXES, SMALL, case, check_eager, check_graphs, logits

END = 3  # the tokenizer's [SEP]
TEXT: dict[str, Any] = {
    "vocab_size": len(WORDS),
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 24,
    "eos_token_id": END,
    "bos_token_id": 2,
}
ACTIVATIONS = {"hidden_act": st.sampled_from(("quick_gelu", "gelu"))}


def processor_of(side: int = 24) -> Any:
    return CLIPImageProcessorPil(size=side + 2, crop_size=side)


def whole(**changes: Any) -> Any:
    """A configuration of both towers."""
    return CLIPConfig(vision_config=SMALL, text_config=TEXT, projection_dim=32, **changes)


def pooled(model: Any, pixel_values: Tensor) -> Tensor:
    vector: Tensor = model(pixel_values).pooler_output
    return vector


def projected(model: Any, pixel_values: Tensor) -> Tensor:
    vector: Tensor = model(pixel_values).image_embeds
    return vector


def unit(vector: Tensor) -> Tensor:
    return nn.functional.normalize(vector, dim=-1)


def image_embeds(model: Any, pixel_values: Tensor) -> Tensor:
    return unit(model.get_image_features(pixel_values).pooler_output)


@settings(max_examples=8, deadline=None)
@given(
    changes=st.fixed_dictionaries(
        {name: values for name, values in AXES.items() if name != "num_channels"} | ACTIVATIONS
    ),
    projects=st.booleans(),
)
def test_eager_images_match_transformers(changes: dict[str, Any], projects: bool) -> None:
    config = CLIPVisionConfig(**SMALL | {"projection_dim": 20} | changes)
    if projects:
        check_eager(CLIPVisionModelWithProjection(config), processor_of(), projected)
    else:
        check_eager(CLIPVisionModel(config), processor_of(), pooled)


@pytest.mark.parametrize(
    ("model", "expected", "tower"),
    [
        (lambda: CLIPVisionModel(CLIPVisionConfig(**SMALL)), pooled, None),
        (
            lambda: CLIPVisionModelWithProjection(CLIPVisionConfig(**SMALL, projection_dim=20)),
            projected,
            None,
        ),
        (lambda: CLIPForImageClassification(whole(num_labels=5)), logits, None),
        (lambda: CLIPModel(whole()), image_embeds, "image"),
    ],
)
def test_graphs_of_images_match_transformers(model: Any, expected: Any, tower: str | None) -> None:
    check_graphs("CLIP (images)", model(), processor_of(), expected, tower)


def end_texts(folder: Path) -> None:
    """Makes the folder's tokenizer append the end-of-text token, as that of CLIP does."""
    path = str(folder / "tokenizer.json")
    tokenizer = Tokenizer.from_file(path)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", END)]
    )
    tokenizer.save(path)


def hidden(model: Any, ids: Tensor) -> Tensor:
    """Returns the vector of every token, after the last norm."""
    vectors: Tensor = model(ids).last_hidden_state
    return vectors


@settings(max_examples=8, deadline=None)
@given(
    changes=st.fixed_dictionaries(
        {
            "num_hidden_layers": st.integers(1, 3),
            "num_attention_heads": st.sampled_from((1, 2, 6)),
            "layer_norm_eps": st.sampled_from((1e-12, 1e-2)),
            **ACTIVATIONS,
        }
    ),
    class_=st.sampled_from([CLIPTextModel, CLIPTextModelWithProjection]),
)
def test_eager_texts_match_transformers(changes: dict[str, Any], class_: Any) -> None:
    model = class_(CLIPTextConfig(**TEXT | changes))
    harness.check_eager(model, expected=hidden, prepare=end_texts)


def last(vectors: Tensor) -> Tensor:
    return vectors[:, -1]


@pytest.mark.parametrize(
    ("model", "expected", "tower"),
    [
        (
            lambda: CLIPTextModel(CLIPTextConfig(**TEXT)),
            lambda model, ids: last(hidden(model, ids)),
            None,
        ),
        (
            lambda: CLIPTextModelWithProjection(CLIPTextConfig(**TEXT, projection_dim=20)),
            lambda model, ids: model.text_projection(last(hidden(model, ids))),
            None,
        ),
        (
            lambda: CLIPModel(whole()),
            lambda model, ids: unit(model.text_projection(last(hidden(model.text_model, ids)))),
            "text",
        ),
    ],
)
def test_graphs_of_texts_match_transformers(model: Any, expected: Any, tower: str | None) -> None:
    harness.check_graphs("CLIP (texts)", model(), expected=expected, prepare=end_texts, tower=tower)


@pytest.mark.parametrize("eos", [END, 2])
def test_the_tower_of_texts_pools_where_transformers_does(eos: int) -> None:
    """Texts end with the token, whose id is wrong in the first configurations."""
    config = whole()
    config.text_config.eos_token_id = eos
    config.text_config.vocab_size = len(WORDS)
    end = END if eos != 2 else len(WORDS) - 1
    model = CLIPModel(config)

    def prepare(folder: Path) -> None:
        path = str(folder / "tokenizer.json")
        tokenizer = Tokenizer.from_file(path)
        token = WORDS[end]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"$A {token}", special_tokens=[(token, end)]
        )
        tokenizer.save(path)

    with imported(model, prepare=prepare, tower="text") as checkpoint:
        tokenizer = Tokenizer.from_str(checkpoint.tokenizer_json)
        ids = torch.tensor([tokenizer.encode("w7 w1 w2 w30").ids])
        module = from_weights(checkpoint.config, checkpoint.weights)
        lengths = torch.tensor([ids.shape[1]])
        actual = module.pool(module.encode(ids, lengths), lengths)
        expected = unit(model.get_text_features(ids).pooler_output)
        assert (actual - expected).abs().max() <= TOLERANCE


def test_texts_are_tokenized_and_pooled_as_transformers_does() -> None:
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    merges = [("c", "a"), ("ca", "t</w>"), ("d", "o"), ("do", "g</w>")]
    tokens = [
        *letters,
        *(f"{letter}</w>" for letter in letters),
        *("".join(pair) for pair in merges),
        *("<|startoftext|>", "<|endoftext|>"),
    ]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    theirs: Any = CLIPTokenizer(vocab=vocabulary, merges=merges)  # type: ignore[arg-type]
    config = whole()
    config.text_config.vocab_size = len(tokens)
    config.text_config.eos_token_id = len(tokens) - 1
    model = CLIPModel(config)
    with imported(model, prepare=theirs.save_pretrained, tower="text") as checkpoint:
        module = from_weights(checkpoint.config, checkpoint.weights)
        ours = Tokenizer.from_str(checkpoint.tokenizer_json)
        for text in ("A cat", "the  DOG and the cats"):
            expected = unit(
                model.get_text_features(**theirs(text, return_tensors="pt")).pooler_output
            )
            ids = ours.encode(text).ids
            lengths = torch.tensor([len(ids)])
            actual = module.pool(module.encode(torch.tensor([ids]), lengths), lengths)
            assert (actual - expected).abs().max() <= TOLERANCE


def test_a_second_configuration_of_a_tower_takes_precedence(tmp_path: Path) -> None:
    model = CLIPModel(whole())
    model.save_pretrained(tmp_path)
    processor_of().save_pretrained(tmp_path)
    wrong = {**SMALL, "num_attention_heads": 1, "hidden_act": "relu"}
    right = {**SMALL, "hidden_act": "gelu"}
    edit_json(tmp_path / "config.json", vision_config=wrong, vision_config_dict=right)
    theirs: Any = CLIPModel.from_pretrained(tmp_path)
    assert theirs.config.vision_config.num_attention_heads == SMALL["num_attention_heads"]
    layer = required_encoder(load_checkpoint(str(tmp_path), "image").config).layers[0]
    assert required(layer.attention).num_heads == SMALL["num_attention_heads"]
    assert required(layer.feed_forward).activation == Activation.GELU


def required_encoder(config: ModelConfig) -> StackConfig:
    assert config.encoder is not None
    return config.encoder


def test_a_tokenizer_that_does_not_end_texts_is_refused() -> None:
    model = CLIPTextModel(CLIPTextConfig(**TEXT))
    with (
        pytest.raises(SourceError, match="does not end texts with the token 3"),
        imported(model),
    ):
        pass


@pytest.mark.parametrize(
    ("tower", "error", "message"),
    [
        (None, SourceError, "choose --tower image or --tower text"),
        ("audio", UnsupportedError, "--tower 'audio' is not supported; supported: image, text"),
    ],
)
def test_a_whole_model_needs_a_tower(
    tower: str | None, error: type[Exception], message: str
) -> None:
    with (
        pytest.raises(error, match=message),
        case(CLIPModel(whole()), processor_of(), image_embeds, tower),
    ):
        pass


def test_one_tower_cannot_be_chosen_from(tmp_path: Path) -> None:
    CLIPVisionModel(CLIPVisionConfig(**SMALL)).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedError, match="'clip_vision_model' is one model"):
        load_checkpoint(str(tmp_path), "image")
