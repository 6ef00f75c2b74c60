"""Prompts of mixed lengths from real sentences, reproducible by seed."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

import numpy as np


@dataclass(frozen=True, slots=True)
class LengthRange:
    """A range of lengths; both ends are included."""

    shortest: int
    longest: int

    @classmethod
    def parse(cls, text: str) -> "LengthRange":
        """From "8-128", or "32" for one length. Raises ``ValueError``."""
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", text.strip())
        if match is None:
            raise ValueError(f"lengths are given as 8-128 or 32, not {text!r}")
        shortest = int(match[1])
        longest = int(match[2] or shortest)
        if not 1 <= shortest <= longest:
            raise ValueError(f"lengths must be at least 1 and ascending, not {text!r}")
        return cls(shortest, longest)


def read_lines(path: Path | None) -> list[str]:
    """The non-blank lines of a file; without a file, of the sentences that we ship.

    Raises ``OSError``, or ``ValueError`` for a file without text.
    """
    text = _shipped("prompts") if path is None else path.read_text(encoding="utf-8")
    lines = _lines(text)
    if not lines:
        raise ValueError(f"{path} has no text")
    return lines


def questions() -> list[str]:
    """Everyday questions to a chat model."""
    return _lines(_shipped("questions"))


@cache
def sentences() -> tuple[str, ...]:
    """200 distinct sentences to translate or embed, of 2 to 37 words."""
    longer = [part for line in read_lines(None) for part in re.split(r"(?<=[.!?]) +", line)]
    return (*_lines(_shipped("sentences")), *longer, *questions())[:200]


def _shipped(name: str) -> str:
    return (resources.files("loadtest") / "data" / f"{name}.txt").read_text(encoding="utf-8")


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


@dataclass(frozen=True, slots=True)
class Prompts:
    """Texts by number.

    With ``words``, each text is made of joined lines, cut to a uniformly distributed number of
    words; without, it is one line.
    """

    lines: Sequence[str]
    words: LengthRange | None
    seed: int

    def text(self, index: int) -> str:
        """The text of request ``index``.

        It starts at a random word of a random line, so that prompts rarely share a prefix:
        a prefix cache should not be faster here than with real traffic.
        """
        random = np.random.default_rng((self.seed, index))
        if self.words is None:
            return self._line(random)
        num_words = int(random.integers(self.words.shortest, self.words.longest + 1))
        words = self._line(random).split()
        words = words[int(random.integers(len(words))) :]
        while len(words) < num_words:
            words += self._line(random).split()
        return " ".join(words[:num_words])

    def _line(self, random: np.random.Generator) -> str:
        return self.lines[int(random.integers(len(self.lines)))]
