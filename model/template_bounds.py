"""Bounds of what operators, methods and filters of a chat template may make."""

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from types import BuiltinMethodType
from typing import Any

from jinja2.exceptions import SecurityError

MAX_CHARACTERS = 4 << 20  # of a prompt, and of every value that an operator makes
MAX_BITS = 1 << 16  # of an integer
MAX_WIDTH = 9_999  # of a padded text
MAX_GROWTH = 1 << 28  # characters of an intermediate value, at worst
# Formats with a width of five digits, or with one from an argument.
_WIDE_PERCENT = re.compile(r"\*|\d{5}", re.ASCII)
_WIDE_BRACES = re.compile(r":[^}]*\{|\d{5}", re.ASCII)
# Methods and filters that pad to a width, and those whose result may be a product of two sizes.
_PADDING = {"center", "ljust", "rjust", "zfill", "to_bytes", "batch", "slice", "round", "wordwrap"}
_MULTIPLYING = {"expandtabs", "indent", "replace", "translate", "wordwrap"}
BOUNDED_FILTERS = ("batch", "center", "indent", "join", "replace", "round", "slice", "wordwrap")


def concatenate(pieces: Iterable[str]) -> str:
    """``pieces`` as one string.

    Raises:
        SecurityError: it has more than ``MAX_CHARACTERS`` characters.
    """
    kept, num_characters = [], 0
    for piece in pieces:
        num_characters += len(piece)
        _check_size(num_characters)
        kept.append(piece)
    return "".join(kept)


def check_operands(operator: str, left: Any, right: Any) -> None:
    """Raises ``SecurityError`` if the result of a binary operator could be too large."""
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length(), right.bit_length()
        if operator == "**" and bits[0] * max(right, 0) > MAX_BITS and bits[0] > 1:
            raise SecurityError(f"an integer of more than {MAX_BITS} bits")
        if operator == "*" and sum(bits) > MAX_BITS:
            raise SecurityError(f"an integer of more than {MAX_BITS} bits")
    elif operator == "%" and isinstance(left, str | bytes):
        _check_percent(left, right)
    elif operator == "+" and hasattr(left, "__len__") and hasattr(right, "__len__"):
        _check_size(len(left) + len(right))
    elif operator == "*":
        for values, count in ((left, right), (right, left)):
            if hasattr(values, "__len__") and isinstance(count, int):
                _check_size(len(values) * count)


def bounded_call(function: Any) -> Any:
    """``function``; a method of a string or a number raises ``SecurityError`` for large results."""
    owner = getattr(function, "__self__", None)
    if not isinstance(function, BuiltinMethodType) or not isinstance(owner, str | bytes | int):
        return function

    def call(*args: Any, **kwargs: Any) -> Any:
        if function.__name__ == "join" and len(args) == 1:
            args = (list(args[0]),)
            _check_join(args[0], owner)
        _check_growth(function.__name__, owner, (*args, *kwargs.values()))
        return function(*args, **kwargs)

    return call


def bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The filter ``function``, which raises ``SecurityError`` for large results."""
    first = int(hasattr(function, "jinja_pass_arg"))  # an argument before the value

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        value, rest = args[first], args[first + 1 :]
        if name == "join":
            value = list(value)
            _check_join(value, next(iter(rest), kwargs.get("d", "")))
        else:
            _check_growth(name, value, (*rest, *kwargs.values()))
        return function(*args[:first], value, *rest, **kwargs)

    return call


def bounded_braces(pattern: str, function: Callable[..., str]) -> Callable[..., str]:
    """``function``, which is ``pattern.format`` or ``pattern.format_map``."""

    def call(*args: Any, **kwargs: Any) -> str:
        if _WIDE_BRACES.search(pattern):
            raise SecurityError("a format with such a width is not supported")
        _check_format(pattern, pattern.count("{"), (*args, *kwargs.values()))
        return function(*args, **kwargs)

    return call


def format_text(pattern: object, *args: Any, **kwargs: Any) -> str:
    """The filter ``format``."""
    values: Any = kwargs or args
    text = str(pattern)
    _check_percent(text, values)
    formatted: str = text % values
    return formatted


def _check_percent(pattern: str | bytes, values: Any) -> None:
    text = pattern.decode("latin-1") if isinstance(pattern, bytes) else pattern
    if _WIDE_PERCENT.search(text):
        raise SecurityError("a format with such a width is not supported")
    parts = values if isinstance(values, tuple) else (values,)
    _check_format(text, text.count("%"), parts)


def _check_format(pattern: str, num_values: int, values: tuple[Any, ...]) -> None:
    longest = max((len(str(value)) for value in values), default=0)
    _check_size(len(pattern) + num_values * (longest + MAX_WIDTH))


def _check_join(values: list[Any], separator: object) -> None:
    separators = len(str(separator)) * len(values)
    _check_size(separators + sum(len(str(value)) for value in values))


def _check_growth(name: str, value: Any, args: tuple[Any, ...]) -> None:
    widths = [arg for arg in args if isinstance(arg, int)]
    if name in _PADDING and max(widths, default=0) > MAX_WIDTH:
        raise SecurityError(f"{name} to more than {MAX_WIDTH} characters or elements")
    if name in _MULTIPLYING:
        texts = [arg for arg in args if isinstance(arg, str | bytes)]
        for table in args:
            texts += table.values() if isinstance(table, Mapping) else ()
        longest = max([*widths, *(len(str(text)) for text in texts)], default=0)
        if len(str(value)) * longest > MAX_GROWTH:
            raise SecurityError(f"{name} to more than {MAX_GROWTH} characters")


def _check_size(size: int) -> None:
    if size > MAX_CHARACTERS:
        raise SecurityError(f"more than {MAX_CHARACTERS} characters or elements")
