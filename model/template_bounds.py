"""Bounds of a chat template: steps, and the size of what its operators, calls and filters make.

Sizes that arguments determine are checked before the work, all others afterwards.
"""

import functools
import re
import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.utils import Namespace

MAX_CHARACTERS = 4 << 20  # limit of a prompt, and of every string, list or mapping
MAX_BITS = 1 << 16  # limit of an integer
MAX_WIDTH = 9_999  # limit of the width that a text is padded to
MAX_GROWTH = 1 << 28  # worst case in characters of a result whose size is known only afterwards
MAX_STEPS = 1 << 18  # limit of loop items, calls, filters and intercepted operators of a prompt
# Widths of five digits, or taken from an argument, after the percent sign or a name.
_WIDE_PERCENT = re.compile(r"%[-#0 +]*\d*\.?\*|[%)][-#0 +]*\d*\.?\d{5}", re.ASCII)
_WIDE_BRACES = re.compile(r"\{|\d{5}", re.ASCII)
# Methods and filters that pad to a width, and those whose result may be a product of two sizes.
_PADDING = {"center", "ljust", "rjust", "zfill", "to_bytes", "batch", "slice", "round", "wordwrap"}
_MULTIPLYING = {"expandtabs", "indent", "replace", "translate", "wordwrap"}
# Filters that do not turn a list or a mapping into text.
_OF_CONTAINERS = {
    *("attr", "batch", "count", "d", "default", "dictsort", "first", "groupby", "items", "join"),
    *("last", "length", "list", "map", "max", "min", "random", "reject", "rejectattr", "reverse"),
    *("select", "selectattr", "slice", "sort", "sum", "unique"),
}

_steps_left: ContextVar[list[int]] = ContextVar("steps_left")


@contextmanager
def limited_steps() -> Iterator[None]:
    """Limits the steps that run in the block: see :func:`count_step`."""
    token = _steps_left.set([MAX_STEPS])
    try:
        yield
    finally:
        _steps_left.reset(token)


def count_step() -> None:
    """Raises ``SecurityError`` after ``MAX_STEPS`` steps in :func:`limited_steps`."""
    left = _steps_left.get()
    left[0] -= 1
    if left[0] < 0:
        raise SecurityError(f"more than {MAX_STEPS} steps")


def counted(values: Iterable[Any]) -> Iterator[Any]:
    """Yields ``values``; each is a step."""
    for value in values:
        count_step()
        yield value


def printable(value: Any) -> Any:
    """Returns ``value``. Raises ``SecurityError`` if its text is too long."""
    if not isinstance(value, str):
        printed_size(value)
    return value


def text_of(value: Any) -> str:
    """Returns ``str(value)``; see :func:`printable`."""
    return str(printable(value))


def printed_size(value: Any) -> int:
    """Returns about how many characters ``str(value)`` has.

    Raises:
        SecurityError: there are more than ``MAX_CHARACTERS``.
    """
    total, waiting = 0, [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, Namespace):
            item = vars(item)["_Namespace__attrs"]
        if isinstance(item, str | bytes):
            total += len(item) + 2
        elif isinstance(item, Mapping):
            total += 4 * len(item) + 2
            waiting += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple | set | frozenset):
            total += 2 * len(item) + 2
            waiting += item
        else:
            total += item.bit_length() // 3 + 1 if isinstance(item, int) else 8
        _check_size(total)
    return total


def concatenate(pieces: Iterable[str]) -> str:
    """Joins ``pieces``.

    Raises:
        SecurityError: they have more than ``MAX_CHARACTERS`` characters.
    """
    kept, num_characters = [], 0
    for piece in pieces:
        num_characters += len(piece)
        _check_size(num_characters)
        kept.append(piece)
    return "".join(kept)


def check_operands(operator: str, left: Any, right: Any) -> None:
    """Raises ``SecurityError`` if the result of a binary operator could be too large."""
    count_step()
    bits = [value.bit_length() for value in (left, right) if isinstance(value, int)]
    if max(bits, default=0) > MAX_BITS:
        raise SecurityError(f"an integer of more than {MAX_BITS} bits")
    if len(bits) == 2:
        if operator == "**" and bits[0] > 1 and bits[0] * max(right, 0) > MAX_BITS:
            raise SecurityError(f"an integer of more than {MAX_BITS} bits")
    elif operator == "%" and isinstance(left, str | bytes):
        _check_percent(left, right)
    elif operator == "+" and hasattr(left, "__len__") and hasattr(right, "__len__"):
        _check_size(len(left) + len(right))
    elif operator == "*":
        for values, count in ((left, right), (right, left)):
            if hasattr(values, "__len__") and isinstance(count, int):
                _check_size(len(values) * count)


def check_call(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Raises ``SecurityError`` if the result of a call could be too large.

    Returns:
        The arguments to call ``function`` with: an iterator that was measured is a list.
    """
    count_step()
    owner = getattr(function, "__self__", None)
    if isinstance(owner, str | bytes | int):
        name = function.__name__
        if name == "join" and len(args) == 1:
            args = (list(args[0]),)
            _check_join(args[0], owner)
        _check_growth(name, owner, (*args, *kwargs.values()))
    return args


def check_result(result: Any) -> Any:
    """Returns ``result``. Raises ``SecurityError`` if it is too large."""
    if isinstance(result, str | bytes | list | tuple | Mapping):
        _check_size(len(result))
    return result


def bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the filter ``function``, which raises ``SecurityError`` for large results."""
    first = int(hasattr(function, "jinja_pass_arg"))  # an argument before the value

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        count_step()
        value, rest = args[first], args[first + 1 :]
        if name == "join":
            value = list(value)
            _check_join(value, next(iter(rest), kwargs.get("d", "")))
        elif name == "sum":
            start = rest[1] if len(rest) > 1 else kwargs.get("start", 0)
            if not isinstance(start, int | float):
                raise SecurityError("only numbers have a sum")
        elif name not in _OF_CONTAINERS:
            printable(value)
        _check_growth(name, value, (*rest, *kwargs.values()))
        return check_result(function(*args[:first], value, *rest, **kwargs))

    return call


def bounded_braces(pattern: str, function: Callable[..., str]) -> Callable[..., str]:
    """Returns ``function``, which is ``pattern.format`` or ``pattern.format_map``, with limits."""

    def call(*args: Any, **kwargs: Any) -> str:
        widths = [width for _, _, width, _ in string.Formatter().parse(pattern) if width]
        if any(map(_WIDE_BRACES.search, widths)):
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
    longest = max(map(printed_size, values), default=0)
    _check_size(len(pattern) + num_values * longest)
    if num_values * MAX_WIDTH > MAX_GROWTH:
        raise SecurityError(f"a format of more than {MAX_GROWTH} characters")


def _check_join(values: list[Any], separator: object) -> None:
    _check_size(len(str(separator)) * len(values) + sum(map(printed_size, values)))


def _check_growth(name: str, value: Any, args: tuple[Any, ...]) -> None:
    widths = [abs(arg) for arg in args if isinstance(arg, int)]
    if name in _PADDING and max(widths, default=0) > MAX_WIDTH:
        raise SecurityError(f"{name} to more than {MAX_WIDTH} characters or elements")
    if name in _MULTIPLYING:
        texts = [arg for arg in args if isinstance(arg, str | bytes)]
        for table in args:
            texts += table.values() if isinstance(table, Mapping) else ()
        longest = max([*widths, *map(printed_size, texts)], default=0)
        if printed_size(value) * longest > MAX_GROWTH:
            raise SecurityError(f"{name} to more than {MAX_GROWTH} characters")


def _check_size(size: int) -> None:
    if size > MAX_CHARACTERS:
        raise SecurityError(f"more than {MAX_CHARACTERS} characters or elements")
