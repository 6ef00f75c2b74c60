"""Inputs that are texts or token ids, one or several, and how long ones are cut."""

from typing import Any, TypeAlias

from server.errors import InvalidArgumentError
from server.frontends.http.endpoint import Call
from server.service.encoder_options import LengthOptions, LongInput
from server.service.tokenize import DetokenizeRequest

Texts: TypeAlias = str | list[str | int | list[int]]
"""A text, texts, the token ids of a text, or those of several."""

ENCODER_NAMES = {
    "inputs": "input",
    "token_inputs": "input",
    "max_tokens": "truncate_prompt_tokens",
    "long_input": "truncate_prompt_tokens",
}
"""The names that OpenAI and vLLM give to the service's fields."""


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


async def encoder_texts(given: Texts, call: Call[Any]) -> tuple[str, ...]:
    """The texts of the field ``input``. Token ids are detokenized: the model's special tokens are
    added around the text, as for texts.

    Raises:
        ServeError: as :func:`texts_or_tokens`, or the ids are not the model's.
    """
    texts, token_inputs = texts_or_tokens(given, "input")
    if not token_inputs:
        return texts
    request = DetokenizeRequest(model=call.body.model, token_inputs=token_inputs)
    return (await call.service.detokenize(request, call.caller)).texts


def truncation(max_tokens: int | None) -> LengthOptions:
    """Of vLLM's ``truncate_prompt_tokens``: truncates only if asked; -1 is the model's limit."""
    if max_tokens is None:
        return LengthOptions()
    return LengthOptions(
        long_input=LongInput.TRUNCATE_RIGHT, max_tokens=None if max_tokens == -1 else max_tokens
    )
