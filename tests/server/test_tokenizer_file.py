"""Tokenizers that are loaded in parts equal those that the library reads."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

from server.text import tokenizer_file
from server.text.tokenizer_file import load_tokenizer

TEXTS = ["Hello, hello world!", "<a> x<b>  <c>é", "ab abc aab <new> b", ""]
LETTERS = "abcdehlorwxé Ġ#"


@pytest.fixture(autouse=True)
def every_file_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_file, "_LARGE_BYTES", 0)


def bpe(**options: Any) -> Tokenizer:
    ids = {"<unk>": 0, "<a>": 1}
    for token in (*LETTERS, "ab", "he", "ll", "hell"):
        ids[token] = len(ids)
    merges = [("a", "b"), ("h", "e"), ("l", "l"), ("he", "ll")]
    tokenizer = Tokenizer(models.BPE(ids, merges, **options))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def word_piece() -> Tokenizer:
    ids = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "hello": 3, "a": 4, "##b": 5, "##ab": 6, "x": 7}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=20))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    return tokenizer


TOKENIZERS = {
    "bpe": bpe,
    "bpe with options": lambda: bpe(
        unk_token="<unk>", fuse_unk=True, byte_fallback=True, ignore_merges=True, dropout=0.0
    ),
    "bpe with affixes": lambda: bpe(continuing_subword_prefix="", end_of_word_suffix=""),
    "word piece": word_piece,
    "unigram": lambda: Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.1), ("b", -2.3)], 0)),
    "word level": lambda: Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>")),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_equals_the_librarys(name: str, tmp_path: Path) -> None:
    tokenizer = TOKENIZERS[name]()
    tokenizer.add_special_tokens(["<a>", AddedToken("<b>", lstrip=True, rstrip=True)])
    tokenizer.add_tokens([AddedToken("<c>", single_word=True, normalized=False), "<new>"])
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding()
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    found, expected = load_tokenizer(path), Tokenizer.from_file(str(path))
    assert found.to_str() == expected.to_str()
    for text in TEXTS:
        assert found.encode(text).ids == expected.encode(text).ids
        assert found.encode(text).offsets == expected.encode(text).offsets


def test_equals_the_librarys_in_bundles(tiny_bundles: Path, head_bundles: Path) -> None:
    paths = [*tiny_bundles.glob("*/1/tokenizer.json"), *head_bundles.glob("*/1/tokenizer.json")]
    assert paths
    for path in paths:
        assert load_tokenizer(path).to_str() == Tokenizer.from_file(str(path)).to_str()


def test_large_files_are_loaded_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    for tokenizer in (bpe(), word_piece()):
        tokenizer.save(str(path))
        assert tokenizer_file._load_parts(path.read_bytes()) is not None


def edited(tokenizer: Tokenizer, **fields: Any) -> str:
    content = json.loads(tokenizer.to_str())
    content["model"] |= fields
    return json.dumps(content)


@pytest.mark.parametrize(
    "text",
    [
        *["", "[]", "{}", "{" * 999, json.dumps({"model": {"type": "BPE"}})],
        *[edited(bpe(), vocab={"a": -1}), edited(bpe(), merges=[["a", "zz"]])],
        *[edited(bpe(), vocab=[]), edited(bpe(), type="Guess")],
    ],
)
def test_reports_the_librarys_errors(text: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(text)
    with pytest.raises(Exception) as expected:  # noqa: PT011
        Tokenizer.from_file(str(path))
    with pytest.raises(Exception) as found:  # noqa: PT011
        load_tokenizer(path)
    assert str(found.value) == str(expected.value)


def test_ids_that_the_library_would_change(tmp_path: Path) -> None:
    """An added token with the id of another one: the library decides."""
    content = json.loads(bpe().to_str())
    content["added_tokens"] = [
        {"id": 99, "content": "<x>", "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": False, "special": True}
    ]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    assert load_tokenizer(path).to_str() == Tokenizer.from_file(str(path)).to_str()
