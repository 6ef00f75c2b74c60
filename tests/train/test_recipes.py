"""Recipes: every committed one is valid, and a bad one lists all of its problems."""

import random
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from model.config import Kind, NormKind
from model.examples import LabelledSpan, MaskedExample, TaggingExample
from train.architecture import KINDS, model_config, with_new_head
from train.batches import IGNORED
from train.data.debian import descriptions, parallel_paragraphs
from train.data.sources import load_dataset
from train.errors import RecipeError, TrainingError
from train.read_recipe import parse_recipe, read_recipe
from train.recipe import ObjectiveKind, TokenizerKind, TokenizerRecipe
from train.rows import TextRowEncoder, mask_row, pair_rows
from train.run import run_training
from train.tokenizer import MASK, SPECIAL, UNKNOWN, special_tokens, train_tokenizer
from train.vocabulary import Vocabulary

RECIPES = sorted(Path(__file__).parents[2].glob("train/recipes/*.toml"))
TINY = [path for path in RECIPES if "tiny" in path.name]


def _values() -> dict[str, Any]:
    return tomllib.loads(TINY[0].read_text("utf-8"))


def test_there_is_a_tiny_recipe_of_every_objective() -> None:
    assert {read_recipe(path).objective for path in TINY} == set(ObjectiveKind)
    assert all(read_recipe(path).name == path.stem for path in RECIPES)


@pytest.mark.parametrize("path", TINY, ids=lambda path: path.stem)
def test_parts_of_synthetic_data_are_disjoint(path: Path) -> None:
    dataset = load_dataset(read_recipe(path), path.parent)
    assert len(dataset.held_out) == len(dataset.validation) == 200
    assert not set(dataset.train) & set(dataset.held_out)
    assert not set(dataset.train) & set(dataset.validation)


def test_every_problem_is_listed_with_its_field() -> None:
    values = _values()
    values["training"]["num_steps"] = 0
    values["training"]["dropout"] = 0.1
    values["model"]["activation"] = "sin"
    del values["license"]
    values["data"]["source"] = "somewhere"
    with pytest.raises(RecipeError) as caught:
        parse_recipe(values, "bad.toml")
    message = str(caught.value)
    assert message.startswith("bad.toml:")
    for field in ("training.num_steps", "training.dropout", "model.activation", "license"):
        assert f"\n  {field}: " in message
    assert "data.source" in message


def test_a_missing_recipe_is_named_once(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        read_recipe(tmp_path / "no.toml")
    assert str(caught.value) == f"{tmp_path / 'no.toml'}: No such file or directory"


@pytest.mark.parametrize(
    ("section", "field", "value", "expected"),
    [
        ("model", "num_heads", 5, "model.num_heads"),
        ("model", "num_kv_heads", 3, "model.num_kv_heads"),
        ("model", "sublayers", "ssff" * 4, "model.sublayers"),
        ("model", "sublayers", "sx", "model.sublayers"),
        ("model", "decoder_sublayers", "scfscf", "model.decoder_sublayers"),
        ("model", "global_tokens", "first", "model.global_tokens"),
        ("model", "universal", {}, "model.positions"),
        ("training", "recurrent_dropout", 0.1, "training.recurrent_dropout"),
        ("data", "max_length", 4096, "data.max_length"),
        ("training", "next_sentence", True, "training.next_sentence"),
        ("tokenizer", "kind", "wordpiece", "tokenizer.kind"),
        ("data", "source", "debian:it", "data.source"),
        ("model", "score", "additive", "model.score"),
        ("model", "placement", "concatenated", "model.placement"),
        ("model", "placement", "every_layer", "model.placement"),
        ("model", "targets", ["query"], "model.targets"),
    ],
)
def test_conflicts_name_a_field(section: str, field: str, value: object, expected: str) -> None:
    values = tomllib.loads((TINY[0].parent / "tiny-brackets.toml").read_text("utf-8"))
    values[section][field] = value
    with pytest.raises(RecipeError, match=f"\n  {expected}: "):
        parse_recipe(values, "bad.toml")


def test_a_model_to_start_from_brings_its_tokenizer() -> None:
    values = _values() | {"start_from": "bert-tiny"}
    with pytest.raises(RecipeError, match=r"\n  tokenizer: start_from brings its own$"):
        parse_recipe(values, "bad.toml")
    del values["tokenizer"]
    assert parse_recipe(values, "good.toml").tokenizer is None


def test_relative_positions_need_scores_linear_in_the_key() -> None:
    values = tomllib.loads((TINY[0].parent / "tiny-shaw.toml").read_text("utf-8"))
    values["model"]["score"] = "cosine"
    with pytest.raises(RecipeError, match=r"\n  model\.score: cosine does not work"):
        parse_recipe(values, "bad.toml")


@pytest.mark.parametrize(
    ("name", "section", "changes", "expected"),
    [
        ("tiny-sandwich", "model", {"decoder_sublayers": "ssccff"}, ""),
        ("tiny-sandwich", "model", {"decoder_sublayers": "sscfff"}, "model.decoder_sublayers"),
        ("tiny-universal", "model", {"sublayers": "sssfff"}, "model.sublayers"),
        ("tiny-longformer", "model", {"window": 1}, "model.global_tokens"),
        ("tiny-longformer", "model", {"score": "cosine"}, "model.score"),
        ("tiny-longformer", "model", {"positions": "relative"}, "model.positions"),
        ("tiny-find", "model", {"hidden_size": 48}, ""),
        ("tiny-find", "model", {"hidden_size": 48, "score": "bilinear"}, "model.num_heads"),
        ("tiny-find", "model", {"hidden_size": 48, "window": 4}, ""),
        ("tiny-find", "model", {"positions": "relative", "window": 4}, "model.positions"),
        ("tiny-find", "model", {"score": "additive", "window": 4}, "model.score"),
        ("tiny-brackets", "model", {"positions": "relative", "window": 4}, ""),
        ("tiny-experts", "model", {"activation": "gelu", "gated": False}, "model.activation"),
        ("tiny-experts", "model", {"activation": "silu", "gated": True}, ""),
        ("tiny-find", "training", {"label_smoothing": 0.1}, "training.label_smoothing"),
        ("tiny-gru-additive", "model", {"window": 4}, "model.window"),
        ("tiny-gru-additive", "training", {"recurrent_dropout": 0.1}, "training.recurrent_dropout"),
    ],
)
def test_conflicts_of_variants(
    name: str, section: str, changes: dict[str, object], expected: str
) -> None:
    values = tomllib.loads((TINY[0].parent / f"{name}.toml").read_text("utf-8"))
    values[section] |= changes
    if not expected:
        assert parse_recipe(values, "good.toml").model is not None
        return
    with pytest.raises(RecipeError, match=f"\n  {expected}: "):
        parse_recipe(values, "bad.toml")


def test_a_readout_needs_an_alignment() -> None:
    values = tomllib.loads((TINY[0].parent / "tiny-gru-additive.toml").read_text("utf-8"))
    del values["model"]["recurrent"]["alignment"]
    del values["model"]["recurrent"]["from_previous"]
    with pytest.raises(RecipeError, match=r"model\.recurrent\.readout: "):
        parse_recipe(values, "bad.toml")


@pytest.mark.parametrize("name", ["tiny-gru-additive", "tiny-runs", "tiny-reverse"])
def test_a_language_model_to_fine_tune_keeps_its_head(name: str) -> None:
    recipe = read_recipe(TINY[0].parent / f"{name}.toml")
    assert recipe.model is not None
    model = msgspec.structs.replace(recipe.model, norm=NormKind.RMS)
    config = model_config(model, recipe.objective, 50, 0)
    assert with_new_head(config, recipe.objective, 0) == config


def _encoder(kind: TokenizerKind, texts: list[str]) -> TextRowEncoder:
    recipe = TokenizerRecipe(kind=kind, vocabulary_size=60)
    tokenizer = train_tokenizer(recipe, KINDS[ObjectiveKind.MASKED], texts)
    vocabulary = Vocabulary(tokenizer, special_tokens(Kind.ENCODER))
    return TextRowEncoder(vocabulary, ("O", "B-X", "I-X"))


@pytest.mark.parametrize("kind", sorted(set(TokenizerKind) - {TokenizerKind.PHONEMES}))
def test_lowercase_texts_have_no_unknown_tokens(kind: TokenizerKind) -> None:
    recipe = TokenizerRecipe(kind=kind, vocabulary_size=300, lowercase=True)
    text = "ÄSOP READS "
    tokenizer = train_tokenizer(recipe, KINDS[ObjectiveKind.MASKED], [text * 20])
    assert UNKNOWN not in tokenizer.encode("Äsop reads").ids
    if kind == TokenizerKind.BPE:
        assert "Ġreads" in tokenizer.encode("ÄSOP READS").tokens


def test_masking_is_that_of_bert() -> None:
    """15 % of the tokens: 80 % masks, 10 % other tokens, 10 % unchanged; no special tokens."""

    text = " ".join("abcdefghijklmnopqrstuvwxyz" * 20)
    encoder = _encoder(TokenizerKind.WORDPIECE, [text])
    row = encoder.masked(MaskedExample(text=text))
    rng = random.Random(0)
    counts = {"masked": 0, "other": 0, "same": 0}
    for _ in range(40):
        masked = mask_row(row, 0.15, encoder.vocabulary, rng)
        for before, after, target in zip(row.inputs, masked.inputs, masked.targets, strict=True):
            if target == IGNORED:
                assert after == before
                continue
            assert target == before >= len(SPECIAL)
            kind = "masked" if after == MASK else "same" if after == before else "other"
            counts[kind] += 1
    total = sum(counts.values())
    assert total / (40 * len(row.inputs)) == pytest.approx(0.15, abs=0.01)
    assert counts["masked"] / total == pytest.approx(0.8, abs=0.02)
    assert counts["other"] / total == pytest.approx(0.1, abs=0.02)


def test_half_of_the_second_texts_are_of_another_row() -> None:

    encoder = _encoder(TokenizerKind.WORDPIECE, ["a b c d e f"])
    row = encoder.masked(MaskedExample(text="a b", following="c"))
    other = encoder.masked(MaskedExample(text="d", following="e f"))
    rng = random.Random(1)
    pairs = [pair_rows(row, other, rng) for _ in range(200)]
    assert 80 < sum(pair.follows for pair in pairs) < 120
    swapped = next(pair for pair in pairs if not pair.follows)
    assert encoder.vocabulary.tokenizer.decode(swapped.inputs) == "a b e f"
    assert swapped.segments == [0, 0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("kind", TokenizerKind)
def test_entities_become_labels_of_tokens(kind: TokenizerKind) -> None:
    text = "ab CD ef"
    encoder = _encoder(kind, [text, "ab ef", "CD"])
    row = encoder.token_classification(
        TaggingExample(text=text, spans=(LabelledSpan(start=3, end=5, label="X"),))
    )
    encoding = encoder.vocabulary.tokenizer.encode(text)
    labelled = [
        text[start:end].strip()
        for (start, end), target in zip(encoding.offsets, row.targets, strict=True)
        if target > 0
    ]
    assert "".join(labelled) == "CD"
    assert next(target for target in row.targets if target > 0) == 1
    assert row.targets[0] == row.targets[-1] == IGNORED


def test_debian_descriptions_become_parallel_paragraphs() -> None:
    english = b"""Package: game
Description-md5: 1
Description-en: a game
 First paragraph
 goes on.
 .
 Features:
  * one thing
    on two lines
  * another
"""
    italian = english.replace(b"-en:", b"-it:").replace(b"a game", b"un gioco")
    italian = italian.replace(b"First paragraph", b"Primo paragrafo").replace(b"another", b"altra")
    pairs = list(parallel_paragraphs(descriptions(english, "en"), descriptions(italian, "it")))
    assert [(pair.source, pair.target) for _, pair in pairs] == [
        ("a game", "un gioco"),
        ("First paragraph goes on.", "Primo paragrafo goes on."),
        ("another", "altra"),
    ]
    assert {group for group, _ in pairs} == {"game"}


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(TrainingError, match=f"^--out {file}: File exists"):
        run_training(TINY[0], file)
