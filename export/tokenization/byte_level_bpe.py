"""Byte-level BPE (Radford et al. 2019) as *tokenizers* JSON."""

from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
)
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

from export.errors import SourceError
from export.supported import lookup
from export.tokenization.bpe import add_prefix, add_special, token_ids

# Pre-tokenizers by llama.cpp's names (``tokenizer.ggml.pre``).
_BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _words(numbers: str) -> PreTokenizer:
    """The pattern of Llama 3 and Qwen2; ``numbers`` is its part for digits."""
    parts = (
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        numbers,
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
    split = pre_tokenizers.Split(Regex("|".join(parts)), "isolated")
    return pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


def _falcon() -> PreTokenizer:
    """Splits off punctuation, then applies GPT-2's pattern, then splits groups of three digits."""
    marks = pre_tokenizers.Split(Regex(r"[\p{P}\$\+<=>\^~\|`]+"), "isolated")
    groups = pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")
    return pre_tokenizers.Sequence([marks, _BYTE_LEVEL, groups])


_SINGLE_DIGITS = pre_tokenizers.Sequence(
    [pre_tokenizers.Digits(individual_digits=True), _BYTE_LEVEL]
)
_LLAMA_3, _QWEN_2 = _words(r"\p{N}{1,3}"), _words(r"\p{N}")
PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "command-r": _SINGLE_DIGITS,
    "dbrx": _LLAMA_3,
    "default": _BYTE_LEVEL,
    "falcon": _falcon(),
    "gpt-2": _BYTE_LEVEL,
    "lfm2": _LLAMA_3,
    "llama-bpe": _LLAMA_3,
    "olmo": _BYTE_LEVEL,
    "phi-2": _BYTE_LEVEL,
    "qwen2": _QWEN_2,
    "refact": _SINGLE_DIGITS,
    "smollm": _SINGLE_DIGITS,
    "stablelm2": _QWEN_2,
    "starcoder": _SINGLE_DIGITS,
}

WHOLE_WORDS = ("lfm2", "llama-bpe")  # a word in the vocabulary needs no merges
NORMALIZERS: dict[str, Normalizer] = {"qwen2": normalizers.NFC()}


@dataclass(frozen=True, kw_only=True)
class ByteLevelBpe:
    """The parts of a tokenizer.

    Attributes:
        merges: pairs written ``"left right"``, best first.
        special: tokens that are matched in text first, and omitted from decoded text.
        added: tokens that are matched in text first, and kept in decoded text.
        prefix: the first token of every sequence.
    """

    tokens: Sequence[str]
    merges: Sequence[str]
    pre_tokenizer: str
    special: Sequence[str] = ()
    added: Sequence[str] = ()
    prefix: str | None = None

    def to_json(self) -> str:
        """The tokenizer as *tokenizers* JSON.

        Raises:
            SourceError: duplicate tokens, or a merge that is not a pair of tokens.
            UnsupportedError: an unknown ``pre_tokenizer``.
        """
        vocabulary = token_ids(self.tokens)
        pairs = [_pair(merge) for merge in self.merges]
        for left, right in pairs:
            for token in (left, right, left + right):
                if token not in vocabulary:
                    raise SourceError(
                        f"the tokenizer's merges: {left!r} {right!r} needs the token {token!r}"
                    )
        try:
            whole = self.pre_tokenizer in WHOLE_WORDS
            tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=whole))
        except Exception as error:
            # The library raises plain Exception.
            raise SourceError(f"the tokenizer's merges: {error}") from error
        tokenizer.pre_tokenizer = lookup(PRE_TOKENIZERS, self.pre_tokenizer, "pre-tokenizer")
        if self.pre_tokenizer in NORMALIZERS:
            tokenizer.normalizer = NORMALIZERS[self.pre_tokenizer]
        tokenizer.decoder = decoders.ByteLevel()
        add_prefix(tokenizer, self.prefix)
        add_special(tokenizer, self.special)
        tokenizer.add_tokens(
            [AddedToken(token, special=False, normalized=False) for token in self.added]
        )
        return tokenizer.to_str()


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    if not left or not right:
        raise SourceError(f"the tokenizer's merge {merge!r} is not a pair")
    return left, right
