"""Shared by both kinds of BPE: token ids, and special tokens."""

from collections.abc import Iterable, Sequence

from tokenizers import AddedToken, Tokenizer, processors

from export.errors import SourceError


def token_ids(tokens: Sequence[str]) -> dict[str, int]:
    """The id of each token.

    Raises:
        SourceError: duplicate tokens.
    """
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise SourceError("the tokenizer has duplicate tokens")
    return vocabulary


def add_prefix(tokenizer: Tokenizer, prefix: str | None) -> None:
    """Makes every sequence start with the token ``prefix``, if it is given."""
    if prefix is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{prefix} $A", special_tokens=[(prefix, tokenizer.token_to_id(prefix))]
        )


def add_special(tokenizer: Tokenizer, tokens: Iterable[str]) -> None:
    """Adds tokens that are matched in text first, and omitted from decoded text."""
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in tokens]
    )
