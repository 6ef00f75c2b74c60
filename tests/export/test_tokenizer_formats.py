"""Tokenizers of folders without tokenizer.json give the original ids on real text."""

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from sentencepiece import SentencePieceProcessor
from tokenizers import Tokenizer
from transformers import (
    BertTokenizer,
    EsmTokenizer,
    GPT2Tokenizer,
    MPNetTokenizer,
    RobertaTokenizer,
)
from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

from export.errors import SourceError, UnsupportedError
from export.readers.fields import Fields
from export.readers.gguf import read_gguf
from export.sources import DEFAULT_SOURCES
from export.tokenization.hugging_face import read_tokenizer
from tests.export.texts import EDGE_CASES, texts

# If two segmentations have equal scores, float32 rounding decides: see sentence_piece.py. The
# number of such ties depends on the trained vocabulary.
TIE = 1e-4
MAX_TIES = 60


@pytest.fixture(scope="module")
def corpus() -> list[str]:
    return texts()


def read(folder: Path, model_type: str) -> Tokenizer:
    return Tokenizer.from_str(read_tokenizer(folder, Fields({"model_type": model_type}, "test")))


def differing_texts(
    corpus: Sequence[str], ours: Callable[[str], list[int]], theirs: Callable[[str], list[int]]
) -> list[str]:
    assert len(corpus) >= 2000
    return [text for text in corpus if ours(text) != theirs(text)]


def without_special_tokens(corpus: Sequence[str]) -> list[str]:
    """Texts without special tokens, which the library never recognizes in text."""
    tags = ("<s>", "</s>", "<unk>", "<pad>")
    return [text for text in corpus if not any(tag in text for tag in tags)]


def check_ties(
    library: SentencePieceProcessor, different: list[str], ours: Callable[[str], list[int]]
) -> None:
    """Asserts that each text of ``different`` has two segmentations of equal score."""
    for text in different:
        best, actual = (
            sum(library.get_score(index) for index in ids)
            for ids in (library.encode(text), ours(text))
        )
        assert abs(best - actual) <= TIE * abs(best), text
    assert len(different) <= MAX_TIES


# --- SentencePiece, against its own library -------------------------------------------------

LLAMA = {
    "model_type": "bpe",
    "byte_fallback": True,
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
    "split_digits": True,
    "allow_whitespace_only_pieces": True,
}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("llama", LLAMA),
    "Gemma": (
        "gemma",
        {
            **LLAMA,
            "add_dummy_prefix": False,
            "user_defined_symbols": ["<mask>", "\n\n", "<b>"],
            **{"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3},
            **{"bos_piece": "<bos>", "eos_piece": "<eos>"},
        },
    ),
    "BPE without bytes": ("t5", {"model_type": "bpe"}),
    "T5": ("t5", {"model_type": "unigram", "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}),
    "unigram with bytes": ("t5", {"model_type": "unigram", "byte_fallback": True}),
}


def train(folder: Path, name: str, corpus: Sequence[str], options: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    with (folder / name).open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([text for text in corpus if "\0" not in text][:1500]),
            model_writer=file,
            vocab_size=1500,
            hard_vocab_limit=False,
            character_coverage=0.98,
            num_threads=1,
            minloglevel=2,
            **options,
        )
    return folder / name


@pytest.mark.parametrize("kind", KINDS)
def test_sentence_piece_ids_match_the_library(tmp_path: Path, corpus: list[str], kind: str) -> None:
    model_type, options = KINDS[kind]
    path = train(tmp_path, "tokenizer.model", corpus, options)
    library, ours = SentencePieceProcessor(str(path)), read(tmp_path, model_type)

    def plain(text: str) -> list[int]:
        return ours.encode(text, add_special_tokens=False).ids

    different = differing_texts(without_special_tokens(corpus), plain, library.encode)
    if options["model_type"] == "bpe":
        assert different == []
    check_ties(library, different, plain)
    ids = ours.encode("The cat sat.").ids
    if model_type == "t5":
        assert ids == [*library.encode("The cat sat."), library.eos_id()]
    else:
        assert ids == [library.bos_id(), *library.encode("The cat sat.")]
    known = [ids for ids in map(library.encode, EDGE_CASES) if library.unk_id() not in ids]
    assert len(known) > 3
    assert [ours.decode(ids) for ids in known] == [library.decode(ids) for ids in known]


def test_real_unigram_vocabulary_matches_the_library(tmp_path: Path, corpus: list[str]) -> None:
    path = next(DEFAULT_SOURCES["en-pt"].locate().glob("*.spm"))
    (tmp_path / "source.spm").write_bytes(path.read_bytes())
    library, ours = SentencePieceProcessor(str(path)), read(tmp_path, "marian")

    def plain(text: str) -> list[int]:
        return ours.encode(text).ids[:-1]

    check_ties(
        library, differing_texts(without_special_tokens(corpus), plain, library.encode), plain
    )


def test_special_and_added_tokens_keep_their_ids(tmp_path: Path, corpus: list[str]) -> None:
    path = train(tmp_path, "tokenizer.model", corpus, LLAMA)
    size = SentencePieceProcessor(str(path)).get_piece_size()
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<|end|>": size}))
    ours = read(tmp_path, "llama")
    assert ours.encode("<s>hello</s><|end|>").ids[:2] == [1, 1]
    assert ours.encode("hello</s><|end|>").ids[-2:] == [2, size]
    assert ours.decode([1, *ours.encode("hello").ids, size]) == "hello"
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<|end|>": size + 7}))
    with pytest.raises(SourceError, match="should have the id"):
        read(tmp_path, "llama")


def test_vocab_json_defines_the_ids(tmp_path: Path, corpus: list[str]) -> None:
    path = train(tmp_path, "source.spm", corpus, {"model_type": "unigram"})
    library = SentencePieceProcessor(str(path))
    pieces = [library.id_to_piece(index) for index in range(len(library))]
    order = ["</s>", "<unk>", *reversed(pieces[3:]), "<pad>"]
    ids = {token: index for index, token in enumerate(order)}
    (tmp_path / "vocab.json").write_text(json.dumps(ids))
    ours = read(tmp_path, "marian")

    def theirs(text: str) -> list[int]:
        return [ids.get(pieces[index], ids["<unk>"]) for index in library.encode(text)]

    different = differing_texts(
        without_special_tokens(corpus), lambda text: ours.encode(text).ids[:-1], theirs
    )
    back = library.piece_to_id(order)
    check_ties(library, different, lambda text: [back[i] for i in ours.encode(text).ids[:-1]])
    assert ours.encode("").ids == [ids["</s>"]]
    (tmp_path / "vocab.json").write_text(json.dumps({**ids, "surplus": len(ids) + 3}))
    with pytest.raises(SourceError, match="gaps or duplicates"):
        read(tmp_path, "marian")


def test_fairseq_ids(tmp_path: Path, corpus: list[str]) -> None:
    path = train(tmp_path, "sentencepiece.bpe.model", corpus, {"model_type": "unigram"})
    library, ours = SentencePieceProcessor(str(path)), read(tmp_path, "xlm-roberta")
    text = "The cat sat on the mat."
    expected = [index + 1 if index > 2 else 3 for index in library.encode(text)]
    assert ours.encode(text).ids == [0, *expected, 2]
    assert ours.encode(text, text).ids == [0, *expected, 2, 2, *expected, 2]
    assert ours.token_to_id("<mask>") == len(library) + 1


@pytest.mark.parametrize("has_file", [True, False])
def test_deberta_ids(tmp_path: Path, corpus: list[str], *, has_file: bool) -> None:
    """Those of the model, then the mask: microsoft/deberta-v3-base has no added_tokens.json."""
    options = {"model_type": "unigram", "pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3}
    names = {"pad": "[PAD]", "bos": "[CLS]", "eos": "[SEP]", "unk": "[UNK]"}
    pieces = {f"{role}_piece": name for role, name in names.items()}
    path = train(tmp_path, "spm.model", corpus, {**options, **pieces})
    library = SentencePieceProcessor(str(path))
    if has_file:
        (tmp_path / "added_tokens.json").write_text(json.dumps({"[MASK]": len(library)}))
    ours = read(tmp_path, "deberta-v2")

    def plain(text: str) -> list[int]:
        return ours.encode(text, add_special_tokens=False).ids

    tags = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]")
    untagged = [text for text in corpus if not any(tag in text for tag in tags)]
    check_ties(library, differing_texts(untagged, plain, library.encode), plain)
    text = "The cat sat on the mat."
    ids = library.encode(text)
    assert ours.encode(text).ids == [1, *ids, 2]
    pair = ours.encode(text, text)
    assert pair.ids == [1, *ids, 2, *ids, 2]
    assert pair.type_ids == [0] * (len(ids) + 2) + [1] * (len(ids) + 1)
    assert len(library) in ours.encode("The [MASK] sat.").ids
    (tmp_path / "tokenizer_config.json").write_text('{"split_by_punct": true}')
    with pytest.raises(UnsupportedError, match="split_by_punct is not supported"):
        read(tmp_path, "deberta-v2")


def test_camembert_ids(tmp_path: Path, corpus: list[str]) -> None:
    """Those of the first pieces: camembert-base has <s> as 5 and </s> as 6."""
    path = train(tmp_path, "sentencepiece.bpe.model", corpus, {"model_type": "unigram"})
    library, ours = SentencePieceProcessor(str(path)), read(tmp_path, "camembert")
    text = "The cat sat on the mat."
    expected = [index + 4 if index > 0 else 3 for index in library.encode(text)]
    assert ours.encode(text).ids == [5, *expected, 6]
    pair = ours.encode(text, text)
    assert pair.ids == [5, *expected, 6, 6, *expected, 6]
    assert set(pair.type_ids) == {0}
    assert ours.token_to_id("<pad>") == 1
    assert ours.token_to_id("<mask>") == len(library) + 4


# --- ESM, against transformers --------------------------------------------------------------

RESIDUES = (*"LAGVSERTIDPKQNFYMHWCXBUZO.-", "<null_1>")
PROTEINS = (
    "MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQAPILSRVGDGTQDNLSGAEKAVQVKVKALPDAQFEVV",
    "M K T  A\tY\n",
    "MK<mask>AY<mask>",
    "mkt MK1T é",
    "M<null_1>K.-.<cls>A<eos>",
    "",
)
CODONS = tuple("".join(letters) for letters in itertools.product("ACGT", repeat=3))
DNA = ("ACGTACGGTAC", "ACGNTTTAA", "acg ACG", "<mask>ACGT")


@pytest.mark.parametrize(
    ("tokens", "end", "sequences"),
    [
        (("<cls>", "<pad>", "<eos>", "<unk>", *RESIDUES, "<mask>"), "<eos>", PROTEINS),
        # As nucleotide transformers have it: longer tokens before single letters, and no end.
        (("<unk>", "<pad>", "<mask>", "<cls>", *CODONS, *"ACGTN"), None, DNA),
    ],
    ids=["protein", "DNA"],
)
def test_esm_matches_transformers(
    tmp_path: Path, tokens: tuple[str, ...], end: str | None, sequences: tuple[str, ...]
) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(tokens))
    config = {"tokenizer_class": "EsmTokenizer", "eos_token": end}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    theirs, ours = EsmTokenizer.from_pretrained(tmp_path), read(tmp_path, "esm")
    for sequence in sequences:
        assert ours.encode(sequence).ids == theirs.encode(sequence), sequence
    if end is not None:
        pair = ours.encode("MK", "TA")
        assert pair.ids == theirs.encode("MK", "TA")
        assert set(pair.type_ids) == {0}


# --- WordPiece and byte-level BPE, against transformers -------------------------------------


@pytest.mark.parametrize(
    "options",
    [{}, {"do_lower_case": False}, {"do_lower_case": False, "strip_accents": True}],
    ids=["uncased", "cased", "accents stripped"],
)
def test_word_piece_matches_transformers(
    tmp_path: Path, corpus: list[str], options: dict[str, Any]
) -> None:
    source = DEFAULT_SOURCES["minilm"].locate() / "vocab.txt"
    (tmp_path / "vocab.txt").write_bytes(source.read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "BertTokenizer", **options})
    )
    # The legacy class NFC-normalizes cased text; BERT's own code and the current class do not.
    cased = not options.get("do_lower_case", True)
    theirs = (
        BertTokenizer(vocab=str(source), **options)
        if cased
        else BertTokenizerLegacy(str(source), **options)
    )
    ours = read(tmp_path, "bert")
    assert differing_texts(corpus, lambda text: ours.encode(text).ids, theirs.encode) == []
    pair = ours.encode("one two", "three")
    assert pair.ids == theirs.encode("one two", "three")
    assert pair.type_ids == [0, 0, 0, 0, 1, 1]


def test_mpnet_word_piece_matches_transformers(tmp_path: Path, corpus: list[str]) -> None:
    """MPNet's words are BERT's, between RoBERTa's tokens. Its folder names none of them."""
    source = DEFAULT_SOURCES["minilm"].locate() / "vocab.txt"
    words = source.read_text("utf-8").splitlines()[5:]
    names = ["<s>", "<pad>", "</s>", "[UNK]", *words, "<mask>"]
    (tmp_path / "vocab.txt").write_text("\n".join(names), "utf-8")
    (tmp_path / "config.json").write_text('{"model_type": "mpnet"}')
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    theirs, ours = MPNetTokenizer.from_pretrained(tmp_path), read(tmp_path, "mpnet")
    assert differing_texts(corpus, lambda text: ours.encode(text).ids, theirs.encode) == []
    pair = ours.encode("one <mask> two", "three")
    assert pair.ids == theirs.encode("one <mask> two", "three")
    assert set(pair.type_ids) == {0}


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2's vocabulary of 49,152 tokens, in GPT-2's files."""
    metadata = read_gguf(DEFAULT_SOURCES["smollm2"].locate()).metadata
    folder = tmp_path_factory.mktemp("byte-level")
    tokens = metadata.texts("tokenizer.ggml.tokens")
    ids = {token: index for index, token in enumerate(tokens)}
    (folder / "vocab.json").write_text(json.dumps(ids))
    merges = "\n".join(["#version: 0.2", *metadata.texts("tokenizer.ggml.merges"), ""])
    (folder / "merges.txt").write_text(merges)
    return folder


def test_gpt2_byte_level_bpe_matches_transformers(byte_level: Path, corpus: list[str]) -> None:
    config = {"tokenizer_class": "GPT2Tokenizer"}
    (byte_level / "tokenizer_config.json").write_text(json.dumps(config))
    theirs, ours = GPT2Tokenizer.from_pretrained(byte_level), read(byte_level, "gpt2")
    assert differing_texts(corpus, lambda text: ours.encode(text).ids, theirs.encode) == []


def test_roberta_byte_level_bpe_matches_transformers(byte_level: Path, corpus: list[str]) -> None:
    names = {"bos": "<|im_start|>", "eos": "<|im_end|>", "unk": "<|endoftext|>"}
    names |= {
        "sep": "<|im_end|>",
        "cls": "<|im_start|>",
        "pad": "<|endoftext|>",
        "mask": "<jupyter_code>",
    }
    tokens = {f"{role}_token": token for role, token in names.items()}
    config = {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": True, **tokens}
    (byte_level / "tokenizer_config.json").write_text(json.dumps(config))
    theirs, ours = RobertaTokenizer.from_pretrained(byte_level), read(byte_level, "roberta")
    assert differing_texts(corpus, lambda text: ours.encode(text).ids, theirs.encode) == []
    assert ours.encode("one", "two").ids == theirs.encode("one", "two")
    masked = "before <jupyter_code> after"
    assert ours.encode(masked).ids == theirs.encode(masked)


# --- Errors ---------------------------------------------------------------------------------


def test_inconsistent_tokenizer_files_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"no tokenizer; supported: .* vocab\.txt"):
        read(tmp_path, "bert")
    (tmp_path / "vocab.txt").write_text("a\nb\n")
    with pytest.raises(SourceError, match=r"vocab\.txt: no unknown token \[UNK\]"):
        read(tmp_path, "bert")
    (tmp_path / "vocab.txt").write_text("[UNK]\na\n")
    with pytest.raises(SourceError, match="no token for: cls, sep"):
        read(tmp_path, "bert")
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0, "b": 0}))
    (tmp_path / "merges.txt").write_text("a b\n")
    with pytest.raises(SourceError, match="gaps or duplicates"):
        read(tmp_path, "gpt2")
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0, "b": 1}))
    with pytest.raises(SourceError, match="merges"):
        read(tmp_path, "gpt2")


@pytest.mark.parametrize(
    ("model_type", "name", "vocabulary"),
    [
        ("big_bird", "BigBird", "tokenizer.model"),
        ("deberta", "Deberta", "merges.txt"),
        ("bert", "BertJapanese", "vocab.txt"),
    ],
)
def test_unknown_classes_need_a_tokenizer_json(
    tmp_path: Path, model_type: str, name: str, vocabulary: str
) -> None:
    """Without their class, the tokens around a text or the words in it would be others."""
    for file in (vocabulary, "vocab.json"):
        (tmp_path / file).write_text("[UNK]\n")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))
    with pytest.raises(UnsupportedError, match=f"no tokenizer.json, .* class '{name}' is not"):
        read(tmp_path, model_type)
