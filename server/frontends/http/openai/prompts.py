"""Inputs that are texts or token ids, one or several."""

from typing import TypeAlias

from server.errors import InvalidArgumentError

Texts: TypeAlias = str | list[str | int | list[int]]
"""A text, texts, the token ids of a text, or those of several."""


def texts_or_tokens(
    given: Texts, field: str
) -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]:
    """The texts, or the token ids; one of both is empty.

    Raises:
        InvalidArgumentError: there is none, or different kinds; names ``field``.
    """
    if isinstance(given, str):
        return (given,), ()
    if not given:
        raise InvalidArgumentError(field, "must not be empty")
    kind = type(given[0])
    texts, tokens, rows = [], [], []
    for index, item in enumerate(given):
        if not isinstance(item, kind):
            raise InvalidArgumentError(f"{field}[{index}]", "is of another type than the first")
        if isinstance(item, str):
            texts.append(item)
        elif isinstance(item, int):
            tokens.append(item)
        else:
            rows.append(tuple(item))
    return tuple(texts), (tuple(tokens),) if tokens else tuple(rows)
