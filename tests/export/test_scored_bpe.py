"""SentencePiece's BPE from pieces and scores gives the library's ids and texts."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from sentencepiece import SentencePieceProcessor
from tokenizers import Tokenizer

from export.errors import SourceError
from export.tokenization.scored_bpe import ScoredBpe
from export.tokenization.sentence_piece import CONTROL, USER_DEFINED, read_sentence_piece
from tests.export.importers.marian_files import TEXT, train_vocabulary

TEXTS = (
    *TEXT,
    "",
    "a",
    "two  spaces   and\ttabs\nand lines\n\n\nall kept ",
    " leading",
    "unknown: 漢字 ж € 🙂 and on",
    "x" * 300,
    "The<br>cat <br> sat",
)
OPTIONS = {
    "model_type": "bpe",
    "byte_fallback": True,
    "vocab_size": 400,
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
}
VOCABULARIES = {
    "as Llama's": {},
    "as Gemma's": {"add_dummy_prefix": False, "user_defined_symbols": ["<br>", "▁▁", "\n\n"]},
    "without bytes": {"byte_fallback": False, "vocab_size": 150},
}


def tokenizer_of(path: Path) -> ScoredBpe:
    """As a GGUF file describes the model in ``path``."""
    model = read_sentence_piece(path)
    return ScoredBpe(
        tokens=[piece.piece for piece in model.pieces],
        scores=[piece.score for piece in model.pieces],
        unknown=model.pieces[model.unk].piece,
        special=[piece.piece for piece in model.pieces if piece.type == CONTROL],
        added=[piece.piece for piece in model.pieces if piece.type == USER_DEFINED],
        prefix="</s>",
        adds_space=model.normalizer.add_dummy_prefix,
    )


@pytest.mark.parametrize("options", VOCABULARIES.values(), ids=VOCABULARIES)
def test_ids_and_texts_match_the_library(tmp_path: Path, options: dict[str, object]) -> None:
    path = train_vocabulary(tmp_path / "vocabulary.spm", **{**OPTIONS, **options})
    library = SentencePieceProcessor(str(path))
    tokenizer = Tokenizer.from_str(tokenizer_of(path).to_json())
    expected = {text: library.encode(text) for text in TEXTS}
    actual = {text: tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS}
    assert actual == expected
    assert tokenizer.encode("the").ids[0] == library.eos_id()
    if options.get("byte_fallback", True):  # else the unknown token stands for several characters
        assert {text: tokenizer.decode(ids) for text, ids in expected.items()} == {
            text: text for text in TEXTS
        }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": ["a", "a"], "scores": [0.0, 0.0]}, "duplicate tokens"),
        ({"tokens": ["a" * 513], "scores": [0.0]}, "a token of more than 512 letters"),
        ({"tokens": ["a"], "scores": [float("nan")]}, "a score that is not finite"),
    ],
)
def test_damaged_vocabularies_are_refused(changes: dict[str, Any], message: str) -> None:
    bpe = ScoredBpe(tokens=["a"], scores=[0.0], unknown="a")
    with pytest.raises(SourceError, match=message):
        dataclasses.replace(bpe, **changes).to_json()
