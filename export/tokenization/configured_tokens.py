"""Tokens that tokenizer_config.json has and tokenizer.json lacks or describes otherwise.

``transformers`` adds them when it loads a folder (``PreTrainedTokenizerBase._from_pretrained``,
``TokenizersBackend.__init__`` and ``_post_init``): those of ``added_tokens_decoder``, in whose
absence added_tokens.json and special_tokens_map.json count, then special tokens.
"""

from collections.abc import Iterator

from tokenizers import AddedToken, Tokenizer

from export.readers.fields import Fields
from export.tokenization.special import added_tokens, plain_token, token_of

_DECODER = "added_tokens_decoder"
_LISTS = ("additional_special_tokens", "extra_special_tokens")


def missing_tokens(
    tokenizer: Tokenizer, own: Fields, token_map: Fields, added: Fields
) -> list[AddedToken]:
    """The tokens that ``tokenizer`` lacks or describes otherwise, in the order of their addition.

    What either calls special is special.

    Args:
        own: tokenizer_config.json.
        token_map: special_tokens_map.json.
        added: added_tokens.json.

    Raises:
        SourceError: a field has another type.
    """
    known = {token.content: token for token in tokenizer.get_added_tokens_decoder().values()}
    if own.get(_DECODER) is None:
        fields = Fields({**own, **token_map}, own.origin)
        names = {token.content for token in _tokens_in(fields)}
        listed = [_listed(name, is_special=name in names) for name in added if name not in known]
    else:
        fields = own
        by_id = added_tokens(own, Fields({}, added.origin))
        listed = [token for _, token in sorted(by_id.items())]
    unchanged = set(map(repr, known.values()))
    tokens = dict(known)
    for token in listed:
        token.special |= token.content in known and known[token.content].special
        tokens[token.content] = token
    for token in _tokens_in(fields):
        tokens.setdefault(token.content, token)
    for token in _named(fields):
        tokens[token.content].special = True
    return [token for token in tokens.values() if repr(token) not in unchanged]


def add_missing(tokenizer: Tokenizer, tokens: list[AddedToken], vocabulary_size: int) -> None:
    """Adds ``tokens``, except new ones that would have ids from ``vocabulary_size`` on.

    A tokenizer may have more tokens than its model; texts do not contain them.
    """
    for token in tokens:
        is_new = tokenizer.token_to_id(token.content) is None
        if not is_new or tokenizer.get_vocab_size() < vocabulary_size:
            tokenizer.add_tokens([token])


def _tokens_in(fields: Fields) -> Iterator[AddedToken]:
    """The special tokens in ``fields``: those with names, then others."""
    yield from _named(fields)
    lists = [fields.get(name) for name in _LISTS]
    yield from _read([item for x in lists if isinstance(x, list) for item in x], fields.origin)


def _named(fields: Fields) -> Iterator[AddedToken]:
    values = [fields[name] for name in fields if name.endswith("_token")]
    for tokens in map(fields.get, _LISTS):
        values += tokens.values() if isinstance(tokens, dict) else ()
    return _read(values, fields.origin)


def _read(values: list[object], origin: str) -> Iterator[AddedToken]:
    for value in values:
        if isinstance(value, str) and value:
            yield plain_token(value)
        elif isinstance(value, dict):
            yield token_of(Fields({**value, "special": True}, origin))


def _listed(name: str, *, is_special: bool) -> AddedToken:
    """A token of added_tokens.json."""
    return AddedToken(name, special=is_special, normalized=not is_special)
