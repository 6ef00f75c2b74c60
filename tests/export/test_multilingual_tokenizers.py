"""Tokenizers of translation models without tokenizer.json give the original ids on real text.

mBART, NLLB and PEGASUS use the SentencePiece library's ids with an offset, plus language, mask and
unused tokens. M2M-100 and Marian are compared with the slow tokenizers of transformers.
"""

import json
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from sentencepiece import SentencePieceProcessor
from tokenizers import Tokenizer
from transformers import M2M100Tokenizer, MarianTokenizer

from export.errors import SourceError, UnsupportedError
from export.sources import DEFAULT_SOURCES
from tests.export.test_tokenizer_formats import (
    check_ties,
    differing_texts,
    read,
    train,
    without_special_tokens,
)
from tests.export.texts import texts

BPE: dict[str, Any] = {"model_type": "bpe"}
UNIGRAM: dict[str, Any] = {"model_type": "unigram"}
PEGASUS: dict[str, Any] = UNIGRAM | {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}


@pytest.fixture(scope="module")
def corpus() -> list[str]:
    return without_special_tokens(texts())


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, corpus: list[str]) -> dict[str, bytes]:
    """SentencePiece models by name, each trained once."""
    folder = tmp_path_factory.mktemp("trained")
    kinds = {"bpe": BPE, "unigram": UNIGRAM, "pegasus": PEGASUS}
    return {name: train(folder, name, corpus, kinds[name]).read_bytes() for name in kinds}


def write_config(folder: Path, **config: Any) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def check(
    corpus: list[str],
    library: SentencePieceProcessor,
    ours: Tokenizer,
    map_id: Callable[[int], int],
    *,
    before: list[int | None],
    after: list[int | None],
    is_bpe: bool = False,
) -> None:
    """Every text of ``corpus`` gets the ids of ``library`` mapped by ``map_id``, between the ends.

    Texts that differ must have two segmentations of equal score: see test_tokenizer_formats.py.
    """
    whole = ours.encode(corpus[0]).ids
    assert whole == [*before, *map(map_id, library.encode(corpus[0])), *after]

    def plain(text: str) -> list[int]:
        return ours.encode(text, add_special_tokens=False).ids

    different = differing_texts(corpus, plain, lambda text: [*map(map_id, library.encode(text))])
    assert not (is_bpe and different)
    back = {map_id(index): index for index in range(len(library))}
    check_ties(library, different, lambda text: [back[index] for index in plain(text)])


@pytest.mark.parametrize(
    ("name", "trained_as", "config", "size", "before", "after"),
    [
        ("mbart", "unigram", {}, 25, [], ["</s>", "en_XX"]),
        ("mbart", "unigram", {"src_lang": "ro_RO"}, 25, [], ["</s>", "ro_RO"]),
        ("mbart", "unigram", {"tokenizer_class": "MBart50Tokenizer"}, 52, ["en_XX"], ["</s>"]),
        ("m2m_100", "bpe", {}, 202, ["eng_Latn"], ["</s>"]),
        ("nllb-moe", "bpe", {"legacy_behaviour": True}, 202, [], ["</s>", "eng_Latn"]),
    ],
    ids=["mBART", "mBART from Romanian", "mBART-50", "NLLB", "NLLB of old"],
)
def test_fairseq_ids_and_language_tokens(
    tmp_path: Path,
    corpus: list[str],
    trained: dict[str, bytes],
    name: str,
    trained_as: str,
    config: dict[str, Any],
    size: int,
    before: list[str],
    after: list[str],
) -> None:
    """The slow tokenizers' layout: ``<s> <pad> </s> <unk>``, pieces, languages, mask."""
    path = tmp_path / "sentencepiece.bpe.model"
    path.write_bytes(trained[trained_as])
    write_config(tmp_path, **config)
    ours, library = read(tmp_path, name), SentencePieceProcessor(str(path))
    first = len(library) + 1
    assert ours.token_to_id("<mask>") == first + size
    assert ours.get_vocab_size() == first + size + 1
    added = ours.get_added_tokens_decoder()
    assert all(added[first + index].special for index in range(size))
    start, end = ([ours.token_to_id(token) for token in ends] for ends in (before, after))
    assert None not in [*start, *end]
    check(
        corpus if not config else corpus[-2000:],
        library,
        ours,
        lambda index: index + 1 if index else 3,
        before=start,
        after=end,
        is_bpe=trained_as == "bpe",
    )


def test_pegasus_offset_and_masks(
    tmp_path: Path, corpus: list[str], trained: dict[str, bytes]
) -> None:
    path = tmp_path / "spiece.model"
    path.write_bytes(trained["pegasus"])
    ours, library = read(tmp_path, "pegasus"), SentencePieceProcessor(str(path))
    known = {0: "<pad>", 1: "</s>", 2: "<mask_1>", 3: "<mask_2>", 4: "<unk_2>", 104: "<unk_102>"}
    assert {index: ours.id_to_token(index) for index in known} == known
    assert ours.token_to_id("<unk>") == 105
    assert ours.get_vocab_size() == len(library) + 103
    check(
        corpus,
        library,
        ours,
        lambda index: index if index < 2 else index + 103,
        before=[],
        after=[1],
    )
    assert ours.encode("a <mask_1> b").ids.count(2) == 1
    write_config(tmp_path, offset=0)
    assert read(tmp_path, "pegasus").token_to_id("<unk>") == 2
    write_config(tmp_path, offset=2)
    with pytest.raises(SourceError, match="offset 2"):
        read(tmp_path, "pegasus")


def test_m2m_100_matches_transformers(
    tmp_path: Path, corpus: list[str], trained: dict[str, bytes]
) -> None:
    path = tmp_path / "sentencepiece.bpe.model"
    path.write_bytes(trained["bpe"])
    library = SentencePieceProcessor(str(path))
    pieces = [library.id_to_piece(index) for index in range(3, len(library))]
    order = ["<s>", "<pad>", "</s>", "<unk>", *reversed(pieces)]
    vocabulary = tmp_path / "vocab.json"
    vocabulary.write_text(json.dumps({token: index for index, token in enumerate(order)}))
    write_config(tmp_path, tokenizer_class="M2M100Tokenizer", src_lang="pt")
    theirs = M2M100Tokenizer(str(vocabulary), str(path), src_lang="pt")
    ours = read(tmp_path, "m2m_100")
    assert ours.token_to_id("__pt__") == theirs.get_lang_id("pt") == ours.encode("x").ids[0]
    assert ours.get_vocab_size() == len(order) + 100
    # "__or__" (Odia) is a token only if the folder lists its special tokens, else plain text.
    languages = [token.content for token in ours.get_added_tokens_decoder().values()]
    plain = [text for text in corpus if not any(token in text for token in languages)]
    assert differing_texts(plain, lambda text: ours.encode(text).ids, theirs.encode) == []
    ids = [ids for text in corpus[-50:] if 3 not in (ids := theirs.encode(text))]
    assert ids
    assert [ours.decode(row) for row in ids] == [theirs.decode(row[1:-1]) for row in ids]
    write_config(tmp_path, tokenizer_class="M2M100Tokenizer", language_codes="wmt22")
    with pytest.raises(UnsupportedError, match="language_codes 'wmt22'"):
        read(tmp_path, "m2m_100")


def test_marian_decodes_target_pieces_but_never_encodes_them(
    tmp_path: Path, corpus: list[str]
) -> None:
    """One vocabulary over two SentencePiece models, here of English and Portuguese."""
    for side, name in (("source", "en-pt"), ("target", "pt-en")):
        path = next(DEFAULT_SOURCES[name].locate().glob("*.spm"))
        (tmp_path / f"{side}.spm").write_bytes(path.read_bytes())
    source, target = (
        SentencePieceProcessor(str(tmp_path / f"{side}.spm")) for side in ("source", "target")
    )
    sides = [[side.id_to_piece(index) for index in range(len(side))] for side in (source, target)]
    order = [*dict.fromkeys(["</s>", "<unk>", *sides[0], *sides[1]]), "<pad>"]
    ids = {token: index for index, token in enumerate(order)}
    (tmp_path / "vocab.json").write_text(json.dumps(ids))
    files: Any = [str(tmp_path / name) for name in ("source.spm", "target.spm", "vocab.json")]
    theirs = MarianTokenizer(*files)
    ours = read(tmp_path, "marian")

    def plain(text: str) -> list[int]:
        return ours.encode(text, add_special_tokens=False).ids

    # Marian reads a leading ">>" as a language tag.
    ordinary = [text for text in corpus if not text.startswith(">>")]
    different = differing_texts(
        ordinary, plain, lambda text: theirs.encode(text, add_special_tokens=False)
    )
    back = source.piece_to_id(order)
    check_ties(source, different, lambda text: [back[index] for index in plain(text)])

    only_target = {ids[piece] for piece in sides[1]} - {ids[piece] for piece in sides[0]}
    assert len(only_target) > 1000
    encoded = {index for text in ordinary[-500:] for index in plain(text)}
    assert not encoded & only_target
    rows = [theirs(text_target=text)["input_ids"] for text in ordinary[-200:]]
    rows = [[*takewhile(lambda index: index != ids["</s>"], row)] for row in rows]
    known = [row for row in rows if ids["<unk>"] not in row]
    assert {index for row in known for index in row} & only_target
    assert [ours.decode(row) for row in known] == [
        theirs.decode(row, clean_up_tokenization_spaces=False) for row in known
    ]
