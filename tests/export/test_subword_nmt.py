"""Tokenizers of Blenderbot and BlenderbotSmall give the ids of transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer
from transformers.models.blenderbot_small.tokenization_blenderbot_small import (
    BlenderbotSmallTokenizer,
)

from export.errors import SourceError
from export.readers.fields import Fields
from export.tokenization.hugging_face import read_tokenizer
from tests.export.texts import texts

SPECIAL = ("__null__", "__start__", "__end__", "__unk__")
NEW_LINES = (
    "one\ntwo",
    "one.\ntwo",
    "one'\ntwo",
    "\none \n two\n\nthree\n",
    "(one\n)two!? three's 'four'",
    "one@@ @@ two",
)


@pytest.fixture(scope="module")
def corpus() -> list[str]:
    return [*NEW_LINES, *texts()]


def write(folder: Path, merges: list[tuple[str, str]], tokens: list[str]) -> None:
    (folder / "vocab.json").write_text(json.dumps({x: index for index, x in enumerate(tokens)}))
    lines = ["#version: 0.2", *map(" ".join, merges), ""]
    (folder / "merges.txt").write_text("\n".join(lines))
    (folder / "tokenizer.json").write_text('{"added_tokens": []}')  # not read by the class


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, corpus: list[str]) -> Path:
    """The files of BlenderbotSmall, with 3,000 tokens of the corpus."""
    trained = Tokenizer(models.BPE(unk_token="__unk__", end_of_word_suffix="</w>"))
    trained.normalizer = normalizers.Lowercase()
    trained.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.BpeTrainer(
        vocab_size=3000, end_of_word_suffix="</w>", special_tokens=list(SPECIAL), limit_alphabet=200
    )
    trained.train_from_iterator(corpus, trainer)
    merges = [tuple(pair) for pair in json.loads(trained.to_str())["model"]["merges"]]
    ids = trained.get_vocab()
    named = sorted(ids, key=lambda token: ids[token])
    tokens = [
        token.removesuffix("</w>") if token.endswith("</w>") or token in SPECIAL else f"{token}@@"
        for token in named
    ]
    folder = tmp_path_factory.mktemp("blenderbot-small")
    write(folder, merges, tokens)
    return folder


def read(folder: Path, model_type: str) -> Tokenizer:
    return Tokenizer.from_str(read_tokenizer(folder, Fields({"model_type": model_type}, "test")))


def test_blenderbot_small_matches_transformers(small: Path, corpus: list[str]) -> None:
    theirs: Any = BlenderbotSmallTokenizer.from_pretrained(small)
    ours = read(small, "blenderbot-small")
    assert [text for text in corpus if ours.encode(text).ids != theirs.encode(text)] == []
    ids = ours.encode("Hello! how are you?\nfine, isn't it").ids
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_merges_without_tokens_are_rejected(tmp_path: Path) -> None:
    write(tmp_path, [("a", "b</w>"), ("b", "a</w>")], [*SPECIAL, "a@@", "b", "ab", "b@@", "a"])
    with pytest.raises(SourceError, match=r"merges\.txt has parts .* \['ba</w>'\]"):
        read(tmp_path, "blenderbot-small")
    (tmp_path / "merges.txt").write_text("a b c\n")
    with pytest.raises(SourceError, match="'a b c' is not a pair"):
        read(tmp_path, "blenderbot-small")


@pytest.mark.parametrize("adds_space", [None, False, True])
def test_blenderbot_begins_with_a_space_by_default(
    tmp_path: Path, corpus: list[str], adds_space: bool | None
) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.model.save(str(tmp_path))
    config: dict[str, object] = {"tokenizer_class": "BlenderbotTokenizer"}
    if adds_space is not None:
        config["add_prefix_space"] = adds_space
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "blenderbot"}))
    theirs: Any = AutoTokenizer.from_pretrained(tmp_path)
    end = tokenizer.token_to_id("</s>")  # version 4 adds it, version 5 leaves it to tokenizer.json
    converted = read(tmp_path, "blenderbot")
    for text in corpus[:200]:
        assert converted.encode(text).ids == [*theirs.encode(text), end]
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    saved = read(tmp_path, "blenderbot")
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    for text in corpus[:200]:
        assert saved.encode(text).ids == theirs.encode(text)
