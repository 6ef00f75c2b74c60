"""Finds differences between a recorded response and a new one.

Numbers may differ by the rounding of another CPU; vectors are compared by
cosine. Human-readable messages may be reworded but must keep quoted names and numbers.
"""

import itertools
import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

RELATIVE, ABSOLUTE = 1e-4, 1e-5
MIN_COSINE = 1 - 1e-4
MESSAGES = ("message", "failure")

_QUOTED = re.compile(r"(?<!\w)'([^']*)'(?!\w)")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def differences(recorded: Any, actual: Any, path: str = "") -> Iterator[str]:
    """Yields one line per difference."""
    name = path.rpartition(".")[2]
    if name in MESSAGES and isinstance(recorded, str) and isinstance(actual, str):
        yield from _message_differences(recorded, actual, path)
    elif name == "values" and isinstance(recorded, list) and isinstance(actual, list):
        yield from _vector_differences(recorded, actual, path)
    elif isinstance(recorded, dict) and isinstance(actual, dict):
        for key in sorted(recorded.keys() | actual.keys()):
            inner = f"{path}.{key}"
            if key not in actual:
                yield f"{inner}: is missing; recorded: {_short(recorded[key])}"
            elif key not in recorded:
                yield f"{inner}: is new: {_short(actual[key])}"
            else:
                yield from differences(recorded[key], actual[key], inner)
    elif isinstance(recorded, list) and isinstance(actual, list):
        if len(recorded) != len(actual):
            yield f"{path}: {len(actual)} entries, recorded: {len(recorded)}"
        for index, (one, other) in enumerate(zip(recorded, actual, strict=False)):
            yield from differences(one, other, f"{path}[{index}]")
    elif not _is_same(recorded, actual):
        yield f"{path}: {_short(actual)}, recorded: {_short(recorded)}"


def _is_same(recorded: Any, actual: Any) -> bool:
    if isinstance(recorded, float) and isinstance(actual, float):
        return math.isclose(recorded, actual, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    return type(recorded) is type(actual) and bool(recorded == actual)


def _message_differences(recorded: str, actual: str, path: str) -> Iterator[str]:
    """Compares only quoted names and numbers; the wording may change."""
    if bool(recorded) != bool(actual):
        yield f"{path}: {actual!r}, recorded: {recorded!r}"
    numbers = {float(number) for number in _NUMBER.findall(actual)}
    missing = [name for name in _QUOTED.findall(recorded) if name not in actual]
    missing += [x for x in _NUMBER.findall(_QUOTED.sub("", recorded)) if float(x) not in numbers]
    if missing:
        yield f"{path}: {actual!r} lacks {', '.join(missing)} of {recorded!r}"


def _vector_differences(recorded: list[float], actual: list[float], path: str) -> Iterator[str]:
    if len(recorded) != len(actual):
        yield f"{path}: {len(actual)} numbers, recorded: {len(recorded)}"
    elif not _is_near(np.array(recorded), np.array(actual)):
        yield f"{path}: another vector: {_short(actual)}, recorded: {_short(recorded)}"


def _is_near(one: npt.NDArray[np.float64], other: npt.NDArray[np.float64]) -> bool:
    """Compares norm and cosine."""
    if not (np.isfinite(one).all() and np.isfinite(other).all()):
        return False
    sizes = float(np.linalg.norm(one)), float(np.linalg.norm(other))
    if not math.isclose(*sizes, rel_tol=1e-3, abs_tol=ABSOLUTE):
        return False
    return float(one @ other) >= MIN_COSINE * sizes[0] * sizes[1]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]} …"


def report(lines: Iterator[str], max_lines: int = 20) -> str:
    """The first lines and the number of remaining ones."""
    first = list(itertools.islice(lines, max_lines))
    num_more = sum(1 for _ in lines)
    return "\n".join([*first, *([f"… and {num_more} more"] if num_more else [])])
