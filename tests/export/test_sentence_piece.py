"""SentencePiece vocabularies converted to *tokenizers* give the library's ids and texts."""

import unicodedata
from pathlib import Path

import pytest
from sentencepiece import SentencePieceProcessor
from tokenizers import Tokenizer

from export.errors import SourceError, UnsupportedError
from export.tokenization.sentence_piece import read_sentence_piece
from tests.export.importers.marian_files import TEXT, train_vocabulary

TYPED_SPACE_SIGNS = "\u2581the \u2581 cat\u2581"
TEXTS = (
    *TEXT,
    "",
    " ",
    "a",
    "  two  spaces   and\ttabs\nand lines  ",
    "The<br>cat <br> sat@@ing @@",
    "tags: <s>old</s> <unk> <start> </s> <pad>",
    TYPED_SPACE_SIGNS,
    "Ｆｕｌｌ ｗｉｄｔｈ, ﬁne ½ ™ ① …",
    "unknown: 漢字 ж € 🙂 and on",
    "zero\u200bwidth, no\u00a0break, line\u2028separator, control\u0001, mark\ufeff",
    unicodedata.normalize("NFD", "Ação: tiếng Việt, e\u0302\u0301 à"),
    "x" * 500,
)

VOCABULARIES = {
    "as Firefox's": {},
    "no charsmap": {"normalization_rule_name": "identity"},
    "case folded": {"normalization_rule_name": "nmt_nfkc_cf"},
    "spaces kept": {"remove_extra_whitespaces": False},
    "no dummy prefix": {"add_dummy_prefix": False},
    "bytes": {"byte_fallback": True, "vocab_size": 320},
    "padding and symbols": {"pad_id": 2, "user_defined_symbols": ["<br>", "@@"]},
}


@pytest.mark.parametrize("options", VOCABULARIES.values(), ids=VOCABULARIES)
def test_ids_and_texts_match_the_library(tmp_path: Path, options: dict[str, object]) -> None:
    path = train_vocabulary(tmp_path / "vocabulary.spm", **options)
    library = SentencePieceProcessor(str(path))
    model = read_sentence_piece(path)
    tokenizer = Tokenizer.from_str(model.to_json(append_eos=True))
    expected = {text: library.encode(text) for text in TEXTS}
    assert {text: tokenizer.encode(text).ids[:-1] for text in TEXTS} == expected
    assert {tokenizer.encode(text).ids[-1] for text in TEXTS} == {model.eos}
    del expected[TYPED_SPACE_SIGNS]
    decoded = {text: tokenizer.decode(ids) for text, ids in expected.items()}
    assert decoded == {text: library.decode(ids) for text, ids in expected.items()}


def test_extra_control_tokens_are_appended_and_never_encoded(tmp_path: Path) -> None:
    model = read_sentence_piece(train_vocabulary(tmp_path / "vocabulary.spm"))
    json = model.to_json(append_eos=False, extra_control_tokens=("<start>",))
    tokenizer = Tokenizer.from_str(json)
    start = len(model.pieces)
    assert tokenizer.get_vocab_size() == start + 1
    assert start not in tokenizer.encode("<start> the <start>").ids
    assert tokenizer.decode([start, *tokenizer.encode("the cat").ids, model.eos]) == "the cat"


def test_files_other_than_unigram_models_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.spm"
    path.write_bytes(b"\xff" * 64)
    with pytest.raises(SourceError, match="not a SentencePiece model"):
        read_sentence_piece(path)
    path.write_bytes(b"")
    with pytest.raises(SourceError, match="without pieces"):
        read_sentence_piece(path)
    with pytest.raises(SourceError, match="not a SentencePiece model"):
        read_sentence_piece(tmp_path / "none.spm")
    train_vocabulary(path, model_type="bpe")
    with pytest.raises(UnsupportedError, match="'BPE' is not supported; supported: UNIGRAM"):
        read_sentence_piece(path).to_json(append_eos=True)
    train_vocabulary(path, model_type="char")
    with pytest.raises(UnsupportedError, match="model_type 'CHAR' is not supported"):
        read_sentence_piece(path)
    train_vocabulary(path, treat_whitespace_as_suffix=True)
    with pytest.raises(UnsupportedError, match="spaces must be a prefix"):
        read_sentence_piece(path)


def test_symbol_changed_by_normalization_is_rejected(tmp_path: Path) -> None:
    path = train_vocabulary(tmp_path / "vocabulary.spm", user_defined_symbols=["™"])
    with pytest.raises(UnsupportedError, match="normalising changes the symbol '™'"):
        read_sentence_piece(path).to_json(append_eos=True)
