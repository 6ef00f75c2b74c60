"""Tokens that only tokenizer_config.json and its like have, against transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken
from transformers import AutoTokenizer

from tests.export.importers.support import edit_json
from tests.export.test_class_fields import byte_level, read, write

TURN = "<|turn|>"
TEXT = f"a {TURN} b <pad> c <mask> <unk>"
NAMED = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def described(content: str, **flags: bool) -> dict[str, object]:
    """The description of a token in ``added_tokens_decoder``."""
    plain = dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word"), False)
    return {"content": content, **plain, "special": True, **flags}


def write_folder(folder: Path, is_special: bool | None, **fields: object) -> int:
    """Writes a tokenizer, without ``TURN`` if ``is_special`` is None. Returns that token's id."""
    tokenizer = byte_level(adds_space=False)
    tokenizer.add_special_tokens(["<s>", "</s>"])
    id_ = tokenizer.get_vocab_size()
    if is_special is not None:
        tokenizer.add_tokens([AddedToken(TURN, special=is_special, normalized=False)])
    write(folder, tokenizer, "llama", tokenizer_class="PreTrainedTokenizerFast", **fields)
    edit_json(folder / "config.json", vocab_size=id_ + 1)
    return id_


def check(folder: Path) -> None:
    ours, theirs = read(folder), AutoTokenizer.from_pretrained(folder)
    ids = theirs(TEXT, add_special_tokens=False)["input_ids"]
    assert ours.encode(TEXT, add_special_tokens=False).ids == ids
    expected = theirs.decode(ids, skip_special_tokens=True)
    assert ours.decode(ids, skip_special_tokens=True) == expected


@pytest.mark.parametrize("is_special", [None, True, False])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"pad_token": "<pad>"},
        {"pad_token": {"__type": "AddedToken", **described("<pad>", lstrip=True)}},
        {"eos_token": TURN},
        {"turn_token": TURN},
        {"additional_special_tokens": [TURN, "<mask>"]},
        {"extra_special_tokens": {"turn": TURN}},
        {"added_tokens_decoder": {"9": described("<mask>", lstrip=True)}},
        {"added_tokens_decoder": {"ID": described(TURN)}},
        {"added_tokens_decoder": {"ID": described(TURN, special=False)}},
        {"added_tokens_decoder": {"ID": described(TURN, rstrip=True)}, "eos_token": TURN},
        {"added_tokens_decoder": {"ID": described(TURN, special=False, normalized=True)}},
    ],
)
def test_tokens_of_the_configuration(
    tmp_path: Path, is_special: bool | None, fields: dict[str, Any]
) -> None:
    id_ = write_folder(tmp_path, is_special)
    values = json.loads(json.dumps(fields).replace('"ID"', f'"{id_}"'))
    write_folder(tmp_path, is_special, **NAMED | values)
    check(tmp_path)


@pytest.mark.parametrize("is_special", [None, True, False])
@pytest.mark.parametrize("has_decoder", [False, True])
def test_older_files_count_without_a_list_of_tokens(
    tmp_path: Path, is_special: bool | None, has_decoder: bool
) -> None:
    fields = {"added_tokens_decoder": {"9": described("<mask>")}} if has_decoder else {}
    id_ = write_folder(tmp_path, is_special, **NAMED, **fields)
    (tmp_path / "added_tokens.json").write_text(json.dumps({TURN: id_}))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"pad_token": "<pad>"}))
    check(tmp_path)


def test_tokens_beyond_the_model_are_left_out(tmp_path: Path) -> None:
    """Such as the padding that a training added without an embedding."""
    id_ = write_folder(tmp_path, None, **NAMED, pad_token=TURN, mask_token="<mask>")
    edit_json(tmp_path / "config.json", vocab_size=id_)
    ours = read(tmp_path)
    assert ours.get_vocab_size() == id_
    assert ours.decode(ours.encode(f"{TURN}<mask>").ids) == TURN


def test_a_complete_tokenizer_stays_as_it_is(tmp_path: Path) -> None:
    write_folder(tmp_path, True, bos_token="<s>", eos_token="</s>", turn_token=TURN)
    expected = json.loads((tmp_path / "tokenizer.json").read_text())
    assert json.loads(read(tmp_path).to_str()) == expected
