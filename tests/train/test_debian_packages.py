"""Sections and descriptions of packages as data sets; BM25; training from an outside encoder."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from export.sources import load_checkpoint
from model.examples import ClassificationExample, RankingExample, TextExample, TranslationExample
from tests.train.support import RECIPES
from train.architecture import with_new_head
from train.data.bm25 import Bm25
from train.data.debian import CACHE_VARIABLE, translation_file
from train.data.debian_packages import REQUEST, relevance_corpus, sections_corpus, summaries_corpus
from train.errors import RecipeError
from train.read_recipe import parse_recipe, read_recipe
from train.recipe import DataRecipe, ObjectiveKind
from train.start import initial_weights, load_start, start_record

NUM_PACKAGES = 300
HELPER = Path("/usr/lib/apt/apt-helper")


@pytest.fixture
def lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two lists as apt keeps them; each even package is a game with a package of its data."""
    packages, texts = [], []
    for number in range(NUM_PACKAGES):
        section = "games" if number % 2 == 0 else "contrib/net"
        source = "".join("abcdefghij"[int(digit)] for digit in f"{number:03}")
        for name in (source, f"{source}-data"):
            packages.append(f"Package: {name}\nSource: {source}\nSection: {section}\n")
            long = " ".join(f"{name}word{index}" for index in range(15))
            texts.append(
                f"Package: {name}\nDescription-md5: 0\nDescription-en: about {name}\n {long}\n"
            )
    mirror = "mirror_debian_dists_bookworm_main"
    (tmp_path / f"{mirror}_binary-amd64_Packages").write_text("\n".join(packages))
    (tmp_path / f"{mirror}_i18n_Translation-en").write_text("\n".join(texts))
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    return tmp_path


def _recipe(source: str, **more: Any) -> DataRecipe:
    return DataRecipe(source=source, **more)


def _sources(texts: Sequence[str]) -> set[str]:
    return {text.split()[1].split("-")[0].rstrip(".") for text in texts}


@pytest.mark.skipif(not HELPER.exists(), reason="needs apt")
@pytest.mark.usefixtures("lists")
def test_sections_are_labels_and_packages_of_a_source_share_a_part() -> None:
    dataset = sections_corpus(_recipe("debian:sections", labels=("games",)))
    parts = [dataset.train, dataset.validation, dataset.held_out]
    examples = [[e for e in part if isinstance(e, ClassificationExample)] for part in parts]
    assert sum(map(len, examples)) == NUM_PACKAGES  # half of the sources, two packages each
    assert {e.label for part in examples for e in part} == {"games"}
    sources = [_sources([e.text for e in part]) for part in examples]
    assert all(sources)
    assert not sources[0] & sources[2]
    assert not sources[0] & sources[1]
    both = sections_corpus(_recipe("debian:sections"))
    assert {e.label for e in both.train if isinstance(e, ClassificationExample)} == {"games", "net"}


@pytest.mark.skipif(not HELPER.exists(), reason="needs apt")
@pytest.mark.usefixtures("lists")
def test_queries_have_one_relevant_document() -> None:
    dataset = relevance_corpus(_recipe("debian:relevance", num_train=20))
    assert len(dataset.train) == 20
    for example in (*dataset.train, *dataset.held_out):
        assert isinstance(example, RankingExample)
        name = example.query.removeprefix("about ")
        assert example.relevant.startswith(f"{name}word0")
        assert example.others
        assert example.relevant not in example.others


@pytest.mark.skipif(not HELPER.exists(), reason="needs apt")
@pytest.mark.usefixtures("lists")
def test_summaries_are_targets_of_descriptions() -> None:
    dataset = summaries_corpus(_recipe("debian:summaries"))
    assert len(dataset.train) + len(dataset.validation) + len(dataset.held_out) == 2 * NUM_PACKAGES
    for example in dataset.held_out:
        assert isinstance(example, TranslationExample)
        assert example.source.startswith(f"{example.target.removeprefix('about ')}word0")


@pytest.mark.skipif(not HELPER.exists(), reason="needs apt")
@pytest.mark.usefixtures("lists")
def test_a_decoder_is_asked_for_summaries() -> None:
    pairs = summaries_corpus(_recipe("debian:summaries"))
    chats = summaries_corpus(_recipe("debian:summaries"), as_messages=True)
    assert len(chats.train) == len(pairs.train)
    found = {}
    for example in chats.held_out:
        assert isinstance(example, TextExample)
        asked, answer = example.turns
        assert (asked.role, answer.role) == ("user", "assistant")
        found[asked.content] = answer.content
    assert found == {
        f"{REQUEST}\n\n{example.source}": example.target
        for example in pairs.held_out
        if isinstance(example, TranslationExample)
    }


def test_a_language_with_a_country_is_found(lists: Path) -> None:
    names = [f"mirror_debian_dists_sid_main_i18n_Translation-{x}.lz4" for x in ("pt%5fBR", "pt")]
    for name in names:
        (lists / name).touch()
    assert translation_file("pt_BR") == lists / names[0]
    assert translation_file("pt") == lists / names[1]
    assert translation_file("pt_PT") is None


def test_bm25_prefers_rare_words_and_short_documents() -> None:
    index = Bm25(["the cat and the dog", "the cat", "the dog", "the bird sings at night"])
    assert index.best("the cat", 2) == [1, 0]
    assert index.best("Bird?", 1) == [3]
    assert not index.scores("fish").any()


def test_training_starts_with_the_layers_of_another_model() -> None:
    path = RECIPES / "debian-sections.toml"
    recipe = read_recipe(path)
    start = load_start(recipe, path.parent)
    assert start is not None
    config = with_new_head(start.config, ObjectiveKind.CLASSIFICATION, 3)
    weights = initial_weights(config, 0, start)
    encoder = [name for name in weights if not name.startswith("head.")]
    assert all(torch.equal(weights[name], start.weights[name]) for name in encoder)
    assert weights["head.output.weight"].shape == (128, 3)
    assert start_record(start).license == load_checkpoint("bert-tiny").license


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"start_from": "no/such/folder"}, "start_from: "),
        (
            {"objective": "masked", "data": {"source": "synthetic:runs"}, "start_from": "minilm"},
            "start_from: objective masked needs the tokens: mask$",
        ),
    ],
)
def test_an_unusable_start_names_the_field(change: dict[str, Any], expected: str) -> None:
    values: dict[str, Any] = {
        "name": "x",
        "license": "Apache-2.0",
        "objective": "classification",
        "start_from": "bert-tiny",
        "data": {"source": "debian:sections"},
        "training": {"num_steps": 1},
        **change,
    }
    recipe = parse_recipe(values, "bad.toml")
    with pytest.raises(RecipeError, match=expected):
        load_start(recipe, RECIPES)
    del values["start_from"]
    with pytest.raises(RecipeError, match="model: missing"):
        parse_recipe(values, "bad.toml")


def test_the_best_by_bm25_are_the_first_of_all() -> None:
    rng = random.Random(0)
    documents = [" ".join(rng.choices("abcdefgh", k=4)) for _ in range(60)]  # many are equal
    index = Bm25(documents)
    for query in ("a b", "c", "z", ""):
        scores = index.scores(query)
        everything = sorted(range(60), key=lambda number: -scores[number])
        assert all(index.best(query, num) == everything[:num] for num in (1, 7, 60, 99))
