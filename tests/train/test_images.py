"""Images to train on: their examples, their augmentation, and what a checkpoint keeps of them."""

import json
import random
import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from export.errors import SourceError
from export.importers.native import import_native
from export.quality.images import images_of
from model.bundle import Task
from model.config import Kind
from model.examples import ClassificationExample, TextExample, parse_examples
from model.image_config import ImageSpec, Resampling
from model.images import Pixels, encode_png
from tests.train.support import RECIPES, shortened
from train.architecture import model_config, with_new_head
from train.batches import IGNORED, Row, make_batch
from train.data.shapes import shapes
from train.errors import DataError, RecipeError
from train.image_recipe import AugmentationRecipe
from train.images import (
    ImageRowEncoder,
    ImageToTextRowEncoder,
    augment_row,
    sample_images,
    transform,
)
from train.read_recipe import parse_recipe
from train.recipe import ObjectiveKind, TokenizerKind, TokenizerRecipe
from train.rows import TextRowEncoder
from train.run import run_training
from train.tokenizer import BOS, EOS, special_tokens, train_tokenizer
from train.vocabulary import Vocabulary

GREY = ImageSpec(
    height=8, width=4, num_channels=1, resize=(8, 4), resampling=Resampling.BILINEAR, num_tokens=3
)


def _pixels(height: int, width: int, channels: int = 1) -> Pixels:
    rng = np.random.default_rng(height * width)
    return rng.integers(0, 256, (height, width, channels), dtype=np.uint8)


PICTURE = encode_png(_pixels(8, 4))


def test_an_image_is_base64_in_json_and_texts_have_no_such_field() -> None:
    image = ClassificationExample(label="x", image=PICTURE)
    line = msgspec.json.encode(image)
    assert parse_examples(line, Task.CLASSIFY, "file") == [image]
    assert b"image" not in msgspec.json.encode(ClassificationExample(label="x", text="a"))


@pytest.mark.parametrize("fields", [{}, {"image": "AA==", "pair": "a"}, {"pair": "a"}])
def test_an_example_has_a_text_or_an_image(fields: dict[str, str]) -> None:
    line = json.dumps({"label": "x", **fields}).encode()
    with pytest.raises(ValueError, match=r"file: line 1: (needs a text or|an image has no pair)"):
        parse_examples(line, Task.CLASSIFY, "file")


def test_a_text_is_about_an_image_or_follows_a_prompt() -> None:
    example = TextExample(text="x", image=PICTURE)
    line = msgspec.json.encode(example)
    assert parse_examples(line, Task.GENERATE, "file") == [example]
    assert b"image" not in msgspec.json.encode(TextExample(text="x"))
    both = json.dumps({"text": "x", "prompt": "a", "image": "AA=="}).encode()
    with pytest.raises(ValueError, match=r"file: line 1: an image has no prompt"):
        parse_examples(both, Task.GENERATE, "file")


def test_a_text_about_an_image_is_a_target() -> None:
    tokenizer = train_tokenizer(
        TokenizerRecipe(kind=TokenizerKind.CHARACTERS), Kind.ENCODER_DECODER, ["ab"]
    )
    vocabulary = Vocabulary(tokenizer, special_tokens(Kind.ENCODER_DECODER))
    encoder = ImageToTextRowEncoder(vocabulary, GREY)
    first, second = (
        encoder.encode(ObjectiveKind.IMAGE_TO_TEXT, TextExample(text=text, image=PICTURE))[0]
        for text in ("ab", "b")
    )
    a, b = (tokenizer.token_to_id(letter) for letter in "ab")
    assert (first.inputs, first.targets) == ([BOS, a, b], [a, b, EOS])
    assert first.length == 3 + GREY.num_tokens
    batch = make_batch([first, second])
    assert batch.targets.tolist() == [[a, b, EOS], [b, EOS, IGNORED]]
    assert batch.pixels is not None
    assert batch.pixels.shape == (2, 8, 4, 1)
    with pytest.raises(ValueError, match="the model reads images, and it has none"):
        encoder.encode(ObjectiveKind.IMAGE_TO_TEXT, TextExample(text="a"))
    with pytest.raises(ValueError, match="the model reads texts, and it has an image"):
        TextRowEncoder(vocabulary).next_token(TextExample(text="a", image=PICTURE))


def test_rows_have_the_tokens_of_their_image() -> None:
    encoder = ImageRowEncoder(GREY, ("x", "y"))
    (row,) = encoder.encode(
        ObjectiveKind.CLASSIFICATION, ClassificationExample(label="y", image=PICTURE)
    )
    assert row.length == 3
    batch = make_batch([row, row])
    assert batch.pixels is not None
    assert batch.targets.tolist() == [[1], [1]]
    np.testing.assert_array_equal(batch.pixels[1].numpy(), _pixels(8, 4))


@pytest.mark.parametrize(
    ("example", "expected"),
    [
        (ClassificationExample(label="x", text="a"), "reads images"),
        (ClassificationExample(label="x", image=b"no image"), "its image is not one of PNG"),
        (ClassificationExample(label="x", image=PICTURE[:60]), "its image is damaged"),
        (ClassificationExample(label="z", image=PICTURE), "has the label z"),
    ],
)
def test_an_image_that_cannot_be_used_is_an_error(
    example: ClassificationExample, expected: str
) -> None:
    with pytest.raises(ValueError, match=expected):
        ImageRowEncoder(GREY, ("x", "y")).encode(ObjectiveKind.CLASSIFICATION, example)


@pytest.mark.parametrize("channels", [1, 3])
def test_an_image_moves_as_it_is_told(channels: int) -> None:
    pixels = _pixels(6, 8, channels)
    still = transform(pixels, degrees=0.0, scale=1.0, shift=(0.0, 0.0))
    np.testing.assert_array_equal(still, pixels)
    moved = transform(pixels, degrees=0.0, scale=1.0, shift=(2.0, 1.0))
    np.testing.assert_array_equal(moved[1:, 2:], pixels[:-1, :-2])
    assert not moved[0].any()
    assert not moved[:, :2].any()


def test_an_image_turns_clockwise_and_grows_about_its_middle() -> None:
    square = _pixels(6, 6)
    turned = transform(square, degrees=90.0, scale=1.0, shift=(0.0, 0.0))
    np.testing.assert_allclose(turned.astype(int), np.rot90(square, -1).astype(int), atol=1)
    block = np.zeros((8, 8, 1), np.uint8)
    block[3:5, 3:5] = 200
    larger = transform(block, degrees=0.0, scale=2.0, shift=(0.0, 0.0))
    assert larger[..., 0].sum() == pytest.approx(4 * block.sum(), rel=0.02)
    np.testing.assert_array_equal(larger, larger[::-1, ::-1])


def test_an_augmentation_depends_on_the_seed_alone() -> None:
    row = Row(inputs=[0] * 3, targets=[0], pixels=_pixels(8, 8))
    recipe = AugmentationRecipe(shift=2.0, rotation=10.0, scale=0.1)
    first, again, other = (augment_row(row, recipe, random.Random(seed)) for seed in (1, 1, 2))
    assert first.pixels is not None
    np.testing.assert_array_equal(first.pixels, again.pixels)
    assert (first.pixels != row.pixels).any()
    assert (first.pixels != other.pixels).any()


def test_samples_are_spread_over_the_data() -> None:
    rng = random.Random(0)
    examples = [shapes(rng) for _ in range(70)]
    samples = sample_images(examples)
    assert len(samples) == 32
    assert samples[1] == getattr(examples[2], "image", None)
    large = ClassificationExample(label="x", image=bytes(400_000))
    assert sample_images([large] * 5) == (large.image,) * 2


def _recipe() -> dict[str, Any]:
    return tomllib.loads((RECIPES / "tiny-vit.toml").read_text("utf-8"))


@pytest.mark.parametrize(
    ("section", "changes", "expected"),
    [
        ("patches", {"size": 5}, "model.patches.height"),
        ("patches", {"width": 18}, "model.patches.width"),
        ("patches", {"num_channels": 2}, "model.patches.num_channels"),
        ("patches", {"mean": [0.1, 0.2]}, "model.patches.mean"),
        ("patches", {"deviation": [0.0]}, "model.patches.deviation"),
        ("patches", {"deviation": []}, "model.patches.deviation"),
        ("patches", {"size": 1, "height": 512, "width": 512}, "model.patches.size"),
        ("model", {"positions": "sinusoidal"}, "model.positions"),
        ("model", {"placement": "concatenated"}, "model.placement"),
        ("model", {"window": 4}, "model.window"),
        ("training", {"batch_tokens": 16}, "training.batch_tokens"),
        ("augmentation", {"scale": 1.0}, "training.augmentation.scale"),
        ("augmentation", {"rotation": -1}, "training.augmentation.rotation"),
        ("augmentation", {"flip": True}, "training.augmentation.flip"),
        ("recipe", {"tokenizer": {"kind": "bpe"}}, "tokenizer"),
        ("recipe", {"objective": "span"}, "model.patches"),
    ],
)
def test_conflicts_name_a_field(section: str, changes: dict[str, object], expected: str) -> None:
    values = _recipe()
    sections = {
        "recipe": values,
        "model": values["model"],
        "patches": values["model"]["patches"],
        "training": values["training"],
        "augmentation": values["training"]["augmentation"],
    }
    sections[section].update(changes)
    with pytest.raises(RecipeError, match=f"\n  {expected}: "):
        parse_recipe(values, "bad.toml")


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("model", "patches", None),
        ("model", "window", 4),
        ("model", "recurrent", {"cell": "gru"}),
        ("model", "universal", {}),
        (
            "model",
            "image_stream",
            {
                **dict.fromkeys(("hidden_size", "num_heads", "inner_size"), 8),
                **dict.fromkeys(("num_layers", "num_connections"), 1),
            },
        ),
        ("recipe", "tokenizer", None),
        ("data", "max_length", 17),
    ],
)
def test_conflicts_of_texts_about_images_name_a_field(
    section: str, name: str, value: object
) -> None:
    values = tomllib.loads((RECIPES / "tiny-captions.toml").read_text("utf-8"))
    changed = values if section == "recipe" else values[section]
    changed.pop(name, None)
    if value is not None:
        changed[name] = value
    field = name if section == "recipe" else f"{section}.{name}"
    with pytest.raises(RecipeError, match=rf"\n  {re.escape(field)}: "):
        parse_recipe(values, "bad.toml")


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary", "relative"])
def test_a_decoder_of_images_has_positions_of_its_own(positions: str) -> None:
    values = tomllib.loads((RECIPES / "tiny-captions.toml").read_text("utf-8"))
    values["model"]["positions"] = positions
    recipe = parse_recipe(values, "tiny-captions.toml")
    assert recipe.model is not None
    config = model_config(recipe.model, recipe.objective, 20, 0)
    encoder, decoder = config.encoder, config.decoder
    assert encoder is not None
    assert decoder is not None
    read, written = encoder.layers[0].attention, decoder.layers[0].attention
    assert read is not None
    assert written is not None
    assert (read.rotary, read.relative) == (None, None)
    assert (written.rotary is not None) == (positions == "rotary")
    assert (written.relative is not None) == (positions == "relative")
    assert not config.reads_texts


def test_a_checkpoint_that_writes_about_images(tmp_path: Path) -> None:
    recipe = shortened("tiny-captions", tmp_path, num_steps=2)
    imported = import_native(run_training(recipe, tmp_path / "out"))
    assert imported.tasks == (Task.GENERATE,)
    assert imported.max_input_tokens is None
    assert imported.image is not None
    assert len(imported.images(64, 0)) == 32
    assert imported.held_out is not None
    examples: Any = imported.held_out.examples
    assert len(images_of(examples, imported.image, has_texts=True)) == 200
    again = tmp_path / "again"
    again.mkdir()
    short = shortened("tiny-captions", again, num_steps=1)
    text = re.sub(r"(?s)\[tokenizer\].*?\[training\]", "[training]", short.read_text("utf-8"))
    start = f'start_from = "{tmp_path / "out"}"\n[data]'
    short.write_text(text.replace("[data]", start), "utf-8")
    continued = import_native(run_training(short, again / "out"))
    assert continued.config == imported.config
    assert continued.tokenizer_json == imported.tokenizer_json


def test_texts_are_not_augmented() -> None:
    values = tomllib.loads((RECIPES / "tiny-majority.toml").read_text("utf-8"))
    values["training"]["augmentation"] = {"shift": 1}
    with pytest.raises(RecipeError, match=r"\n  training\.augmentation: "):
        parse_recipe(values, "bad.toml")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recipes")
    return run_training(shortened("tiny-vit", folder, num_steps=2), folder / "out")


def test_a_checkpoint_has_images_and_no_tokenizer(checkpoint: Path) -> None:
    assert not (checkpoint / "tokenizer.json").exists()
    imported = import_native(checkpoint)
    assert imported.image is not None
    assert imported.image.num_tokens == 17
    assert {sample.shape for sample in imported.samples} == {(16, 16, 1)}
    assert len(imported.images(64, 0)) == 32
    assert imported.held_out is not None
    examples: Any = imported.held_out.examples
    assert len(images_of(examples, imported.image, has_texts=False)) == 200
    with pytest.raises(SourceError, match="held-out example 1: the model needs a text"):
        images_of(examples, None, has_texts=True)


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("image", None, "image does not make what model.patches reads"),
        ("sample_images", ["AA=="], "sample_images: one is not one of PNG"),
        ("sample_images", ["?"], "sample_images"),
    ],
)
def test_a_damaged_checkpoint_of_images_is_refused(
    field: str, value: object, expected: str, checkpoint: Path, tmp_path: Path
) -> None:
    for name in ("model.safetensors", "held_out.jsonl"):
        (tmp_path / name).write_bytes((checkpoint / name).read_bytes())
    config = json.loads((checkpoint / "config.json").read_text("utf-8"))
    (tmp_path / "config.json").write_text(json.dumps({**config, field: value}), "utf-8")
    with pytest.raises(SourceError, match=expected):
        import_native(tmp_path)


def test_a_training_starts_from_a_model_of_images(checkpoint: Path, tmp_path: Path) -> None:
    short = shortened("tiny-vit", tmp_path, num_steps=1)
    lines = short.read_text("utf-8").split("[model]")[0] + "[training]\nnum_steps = 1\n"
    short.write_text(lines.replace("[data]", f'start_from = "{checkpoint}"\n[data]'), "utf-8")
    imported = import_native(run_training(short, tmp_path / "out"))
    before = import_native(checkpoint)
    assert imported.config == with_new_head(before.config, ObjectiveKind.CLASSIFICATION, 4)
    name = "embedding.class_tokens"
    assert (imported.weights[name] - before.weights[name]).abs().max() < 0.1
    assert imported.image == before.image


def test_a_model_of_images_reads_no_texts(tmp_path: Path) -> None:
    recipe = shortened("tiny-vit", tmp_path, num_steps=1)
    text = recipe.read_text("utf-8").replace("synthetic:shapes", "synthetic:majority")
    recipe.write_text(text, "utf-8")
    with pytest.raises(DataError, match="data: train example 1: the model reads images"):
        run_training(recipe, tmp_path / "out")
