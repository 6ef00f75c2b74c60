"""Inputs that are one or several texts or token id lists, and their truncation."""

from typing import Any, TypeAlias, cast

from server.bounds import MAX_TEXTS, MAX_TOKEN_IDS, Size
from server.errors import InvalidArgumentError
from server.frontends.http.endpoint import Call
from server.service.encoder_options import LengthOptions, LongInput
from server.service.tokenize import DetokenizeRequest

Texts: TypeAlias = str | list[str | int | list[int]]
"""A text, several texts, the token ids of one text, or those of several texts."""

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
    """Returns the texts and the token ids; one of the two is empty.

    Raises:
        InvalidArgumentError: ``given`` is empty, too long or mixes types; the error names
            ``field``.
    """
    if isinstance(given, str):
        return (given,), ()
    if not given:
        raise InvalidArgumentError(field, "must not be empty")
    kind = type(given[0])
    Size(MAX_TOKEN_IDS if kind is int else MAX_TEXTS).check_count(field, given)
    if len(set(map(type, given))) > 1:
        other = next(index for index, item in enumerate(given) if type(item) is not kind)
        raise InvalidArgumentError(f"{field}[{other}]", "is of another type than the first")
    if kind is str:
        return tuple(cast("list[str]", given)), ()
    if kind is int:
        return (), (tuple(cast("list[int]", given)),)
    rows = cast("list[list[int]]", given)
    Size(max_total=MAX_TOKEN_IDS).check_total(field, [len(row) for row in rows])
    return (), tuple(map(tuple, rows))


async def encoder_texts(
    given: Texts, call: Call[Any], model: str, field: str = "input"
) -> tuple[str, ...]:
    """The texts of ``field``. Token ids are detokenized; the special tokens of ``model`` are then
    added as to any text.

    Raises:
        ServeError: see :func:`texts_or_tokens`; or the ids are not in the model's vocabulary.
    """
    texts, token_inputs = texts_or_tokens(given, field)
    if not token_inputs:
        return texts
    request = DetokenizeRequest(model=model, token_inputs=token_inputs)
    return (await call.service.detokenize(request, call.caller)).texts


def truncation(max_tokens: int | None) -> LengthOptions:
    """Converts vLLM's ``truncate_prompt_tokens``: ``None`` does not truncate, -1 truncates to the
    model's limit.
    """
    if max_tokens is None:
        return LengthOptions()
    return LengthOptions(
        long_input=LongInput.TRUNCATE_RIGHT, max_tokens=None if max_tokens == -1 else max_tokens
    )
