"""Differences between a recorded answer and a new one.

Numbers may differ by what another processor's arithmetic does to them; vectors are compared by
their cosine. Messages for people may be worded anew: what they quote must still be in them.
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


def differences(recorded: Any, found: Any, path: str = "") -> Iterator[str]:
    """One line for each; none if the answers are the same."""
    name = path.rpartition(".")[2]
    if name in MESSAGES and isinstance(recorded, str) and isinstance(found, str):
        yield from _message_differences(recorded, found, path)
    elif name == "values" and isinstance(recorded, list) and isinstance(found, list):
        yield from _vector_differences(recorded, found, path)
    elif isinstance(recorded, dict) and isinstance(found, dict):
        for key in sorted(recorded.keys() | found.keys()):
            inner = f"{path}.{key}"
            if key not in found:
                yield f"{inner}: is missing; recorded: {_short(recorded[key])}"
            elif key not in recorded:
                yield f"{inner}: is new: {_short(found[key])}"
            else:
                yield from differences(recorded[key], found[key], inner)
    elif isinstance(recorded, list) and isinstance(found, list):
        if len(recorded) != len(found):
            yield f"{path}: {len(found)} entries, recorded: {len(recorded)}"
        for index, (one, other) in enumerate(zip(recorded, found, strict=False)):
            yield from differences(one, other, f"{path}[{index}]")
    elif not _is_same(recorded, found):
        yield f"{path}: {_short(found)}, recorded: {_short(recorded)}"


def _is_same(recorded: Any, found: Any) -> bool:
    if isinstance(recorded, float) and isinstance(found, float):
        return math.isclose(recorded, found, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    return type(recorded) is type(found) and bool(recorded == found)


def _message_differences(recorded: str, found: str, path: str) -> Iterator[str]:
    """Names in quotes and numbers are facts, the rest is wording."""
    if bool(recorded) != bool(found):
        yield f"{path}: {found!r}, recorded: {recorded!r}"
    numbers = {float(number) for number in _NUMBER.findall(found)}
    missing = [name for name in _QUOTED.findall(recorded) if name not in found]
    missing += [x for x in _NUMBER.findall(_QUOTED.sub("", recorded)) if float(x) not in numbers]
    if missing:
        yield f"{path}: {found!r} lacks {', '.join(missing)} of {recorded!r}"


def _vector_differences(recorded: list[float], found: list[float], path: str) -> Iterator[str]:
    if len(recorded) != len(found):
        yield f"{path}: {len(found)} numbers, recorded: {len(recorded)}"
    elif not _is_near(np.array(recorded), np.array(found)):
        yield f"{path}: another vector: {_short(found)}, recorded: {_short(recorded)}"


def _is_near(one: npt.NDArray[np.float64], other: npt.NDArray[np.float64]) -> bool:
    """By length and direction."""
    if not (np.isfinite(one).all() and np.isfinite(other).all()):
        return False
    sizes = float(np.linalg.norm(one)), float(np.linalg.norm(other))
    if not math.isclose(*sizes, rel_tol=1e-3, abs_tol=ABSOLUTE):
        return False
    return float(one @ other) >= MIN_COSINE * sizes[0] * sizes[1]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]} …"


def report(lines: Iterator[str], most: int = 20) -> str:
    """The first lines, and how many more there are."""
    first = list(itertools.islice(lines, most))
    num_more = sum(1 for _ in lines)
    return "\n".join([*first, *([f"… and {num_more} more"] if num_more else [])])
