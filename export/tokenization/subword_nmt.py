"""BPE of letters whose tokens end with ``@@`` inside a word (Sennrich et al. 2016, subword-nmt)."""

from collections.abc import Mapping, Sequence

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from export.errors import SourceError
from export.tokenization.bpe import token_ids

INSIDE = "@@"  # ends a token that a word does not end with
WORD_END = "</w>"  # ends the last part of a word in the merges
NEW_LINE = " __newln__ "
# Python's white space; beyond Unicode's, it has four separators.
_SPACES = r"[\s\x1c-\x1f]"


def subword_nmt(
    tokens: Sequence[str], merges: Sequence[str], special: Mapping[str, str]
) -> Tokenizer:
    """The tokenizer of BlenderbotSmall (Roller et al. 2020).

    Words are lowercase; a mark begins a word, and an apostrophe is one. A line's end after a word
    is the word ``__newln__``.

    Args:
        tokens: in the order of their ids.
        merges: pairs written ``"left right"``, best first.
        special: special tokens by role; ``unk`` is the token of unknown letters.

    Raises:
        SourceError: duplicate tokens, or a merge of parts that are no tokens.
    """
    vocabulary = token_ids([_with_word_end(token, special) for token in tokens])
    pairs = [_pair(merge) for merge in merges]
    missing = {part for left, right in pairs for part in (left, right, left + right)} - {
        *vocabulary
    }
    if missing:
        raise SourceError(f"merges.txt has parts that are not in vocab.json: {sorted(missing)[:5]}")
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=pairs,
            unk_token=special["unk"],
            end_of_word_suffix=WORD_END,
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Replace(Regex(r"(?<=[^\s\x1c-\x1f'])\n"), NEW_LINE),
            normalizers.Lowercase(),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(f"{_SPACES}+"), "removed"),
            pre_tokenizers.Split(Regex("[.,!?()]"), "merged_with_next"),
            pre_tokenizers.Split("'", "isolated"),
        ]
    )
    tokenizer.decoder = decoders.BPEDecoder(WORD_END)
    return tokenizer


def _with_word_end(token: str, special: Mapping[str, str]) -> str:
    """``token`` as the merges write it: ``a`` inside a word, ``a</w>`` at its end."""
    if token in special.values():
        return token
    inside = token.removesuffix(INSIDE)
    return inside if inside and inside != token else token + WORD_END


def _pair(merge: str) -> tuple[str, str]:
    parts = merge.split(" ")
    if len(parts) != 2 or not all(parts):
        raise SourceError(f"merges.txt: {merge!r} is not a pair")
    return parts[0], parts[1]
