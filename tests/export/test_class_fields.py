"""Fields of tokenizer_config.json that contradict tokenizer.json, against transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer

from export.errors import SourceError, UnsupportedError
from export.readers.fields import Fields
from export.tokenization.hugging_face import read_tokenizer
from tests.export.importers.support import edit_json

TEXTS = ("Cafe", "café CAFÉ", "CAFE 東京 a", " a", "東")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<s>", "</s>", "<unk>", "<pad>", "<mask>")
CHANGES: tuple[dict[str, object], ...] = (
    {"do_lower_case": False},
    {"do_lower_case": True},
    {"strip_accents": True},
    {"strip_accents": False},
    {"tokenize_chinese_chars": False},
    {"do_lower_case": False, "strip_accents": None, "tokenize_chinese_chars": None},
    {},
)


def word_piece(*, cased: bool) -> Tokenizer:
    """Of BERT, with letters as tokens."""
    letters = "acefACEFéÉ東京"
    tokens = [*SPECIAL, *letters, *(f"##{letter}" for letter in letters)]
    tokenizer = Tokenizer(models.WordPiece(vocabulary(tokens), unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=not cased, handle_chinese_chars=not cased, strip_accents=None
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def byte_level(*, adds_space: bool) -> Tokenizer:
    """Of GPT-2, with bytes as tokens."""
    tokens = [*SPECIAL, "<|endoftext|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocabulary(tokens), []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=adds_space)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def unigram(*, lowercases: bool = False, scheme: str = "always") -> Tokenizer:
    """Of ALBERT or XLM-RoBERTa."""
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), ("▁", -1.0), ("a", -1.0)], unk_id=0))
    if lowercases:
        tokenizer.normalizer = normalizers.Sequence([normalizers.NFKD(), normalizers.Lowercase()])
    metaspace: Any = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace])
    return tokenizer


def vocabulary(tokens: list[str]) -> dict[str, int]:
    return {token: index for index, token in enumerate(tokens)}


def write(folder: Path, tokenizer: Tokenizer, model_type: str, **fields: object) -> None:
    tokenizer.save(str(folder / "tokenizer.json"))
    edit_json(folder / "config.json", model_type=model_type)
    if fields:
        edit_json(folder / "tokenizer_config.json", **fields)


def read(folder: Path) -> Tokenizer:
    config = json.loads((folder / "config.json").read_text())
    return Tokenizer.from_str(read_tokenizer(folder, Fields(config, "config.json")))


def check(folder: Path) -> None:
    """Asserts that the folder's tokenizer is that of transformers, without special tokens."""
    ours = read(folder)
    theirs: Any = AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        expected = theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.encode(text, add_special_tokens=False).ids == expected, text


@pytest.mark.parametrize("changes", CHANGES)
@pytest.mark.parametrize("cased", [True, False])
@pytest.mark.parametrize(
    ("model_type", "name"),
    [
        ("bert", "BertTokenizer"),
        ("bert", None),
        ("bert", "PreTrainedTokenizerFast"),
        ("distilbert", "DistilBertTokenizerFast"),
        ("convbert", "ConvBertTokenizer"),
        ("convbert", None),
        ("electra", "ElectraTokenizer"),
        ("mobilebert", "MobileBertTokenizer"),
        ("mobilebert", None),
        ("mpnet", "MPNetTokenizer"),
        ("squeezebert", "SqueezeBertTokenizer"),
        ("squeezebert", None),
        ("modernbert", "BertTokenizer"),
    ],
)
def test_normalizer_of_bert(
    tmp_path: Path, model_type: str, name: str | None, cased: bool, changes: dict[str, object]
) -> None:
    write(tmp_path, word_piece(cased=cased), model_type, tokenizer_class=name, **changes)
    check(tmp_path)


@pytest.mark.parametrize("adds_space", [True, False])
@pytest.mark.parametrize("field", [True, False, None])
@pytest.mark.parametrize(
    ("model_type", "name"),
    [
        ("roberta", "RobertaTokenizer"),
        ("roberta", "PreTrainedTokenizerFast"),
        ("bart", None),
        ("longformer", "LongformerTokenizer"),
        ("gpt2", "GPT2TokenizerFast"),
        ("opt", None),
        ("gpt_neox", "GPTNeoXTokenizerFast"),
        ("qwen2", "PreTrainedTokenizerFast"),
        ("llama", "GPT2Tokenizer"),
        ("llama", "LlamaTokenizerFast"),
        ("phi3", "LlamaTokenizer"),
        ("ernie4_5_moe", "GPT2Tokenizer"),
        ("ministral3", "GPT2Tokenizer"),
        ("hyperclovax", "GPT2Tokenizer"),
    ],
)
def test_space_before_bytes(
    tmp_path: Path, model_type: str, name: str | None, adds_space: bool, field: bool | None
) -> None:
    tokenizer = byte_level(adds_space=adds_space)
    write(tmp_path, tokenizer, model_type, tokenizer_class=name, add_prefix_space=field)
    check(tmp_path)


@pytest.mark.parametrize(
    ("model_type", "tokenizer", "field", "supported"),
    [
        ("albert", unigram(lowercases=True), "do_lower_case", True),
        ("albert", unigram(), "do_lower_case", False),
        ("deberta-v2", unigram(), "do_lower_case", False),
        ("xlnet", unigram(), "do_lower_case", False),
        ("xlm-roberta", unigram(), "add_prefix_space", True),
        ("xlm-roberta", unigram(scheme="never"), "add_prefix_space", False),
    ],
)
def test_contradictions_of_other_classes_are_refused(
    tmp_path: Path, model_type: str, tokenizer: Tokenizer, field: str, supported: bool
) -> None:
    write(tmp_path, tokenizer, model_type, **{field: supported})
    plain = read(tmp_path).to_str()
    edit_json(tmp_path / "tokenizer_config.json", **{field: not supported})
    with pytest.raises(UnsupportedError, match=f"{field} {not supported} contradicts"):
        read(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    assert read(tmp_path).to_str() == plain


def test_fields_of_another_type_are_named(tmp_path: Path) -> None:
    write(tmp_path, word_piece(cased=True), "bert", do_lower_case="no")
    with pytest.raises(SourceError, match="do_lower_case is of type str"):
        read(tmp_path)


@pytest.mark.parametrize("cased", [True, False])
def test_a_tokenizer_without_its_configuration_stays_as_it_is(tmp_path: Path, cased: bool) -> None:
    write(tmp_path, word_piece(cased=cased), "distilbert")
    assert read(tmp_path).encode("Ab").tokens == word_piece(cased=cased).encode("Ab").tokens
    assert read(tmp_path).normalizer.lowercase is not cased
