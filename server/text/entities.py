"""From labels of tokens to entities of a text."""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

Scores = npt.NDArray[np.float32]  # [labels]: probabilities of a token's or a word's labels
_PREFIXED = re.compile(r"[BIESLU]-.")
_ENDS = frozenset("ESLU")  # last token, or the only one
_BEGINS = frozenset("BSU")


class Aggregation(StrEnum):
    """How tokens become entities; the last three first make words of tokens."""

    NONE = "none"
    SIMPLE = "simple"
    FIRST = "first"
    AVERAGE = "average"
    MAX = "max"


@dataclass(frozen=True, slots=True)
class LabelledToken:
    """A token or a word: characters from ``start`` to ``end``."""

    scores: Scores
    start: int
    end: int
    begins_word: bool


@dataclass(frozen=True, slots=True)
class Entity:
    label: str
    score: float
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Labelled:
    label: int
    score: float
    start: int
    end: int


def _merge_first(word: Sequence[LabelledToken]) -> Scores:
    return word[0].scores


def _merge_average(word: Sequence[LabelledToken]) -> Scores:
    mean: Scores = np.stack([token.scores for token in word]).mean(0)
    return mean


def _merge_max(word: Sequence[LabelledToken]) -> Scores:
    return max(word, key=lambda token: float(token.scores.max())).scores


WORDS: dict[Aggregation, Callable[[Sequence[LabelledToken]], Scores]] = {
    Aggregation.FIRST: _merge_first,
    Aggregation.AVERAGE: _merge_average,
    Aggregation.MAX: _merge_max,
}


def find_entities(
    tokens: Sequence[LabelledToken],
    labels: Sequence[str],
    aggregation: Aggregation,
    ignored: Collection[str] = ("O",),
) -> list[Entity]:
    """The entities of a text, in its order, as the pipelines of ``transformers`` find them.

    Neighbours of one label become one entity, up to the next that begins one (``B-``, and in
    a BIOES scheme ``S-``, or what follows ``E-`` and ``S-``). Its score is the mean of theirs.

    Args:
        tokens: of the text, without special ones.
        labels: of the model, such as ``B-PER``.
        aggregation: how.
        ignored: labels that are no entities, with their prefix or without.
    """
    if aggregation in WORDS:
        tokens = _words(tokens, WORDS[aggregation])
    found = []
    for token in tokens:
        best = int(token.scores.argmax())
        found.append(_Labelled(best, float(token.scores[best]), token.start, token.end))
    if aggregation == Aggregation.NONE:
        entities = [Entity(labels[x.label], x.score, x.start, x.end) for x in found]
    else:
        entities = _group(found, [_split(label, _has_ends(labels)) for label in labels])
    return [entity for entity in entities if entity.label not in ignored]


def _words(
    tokens: Sequence[LabelledToken], merge: Callable[[Sequence[LabelledToken]], Scores]
) -> list[LabelledToken]:
    words: list[list[LabelledToken]] = []
    for token in tokens:
        if token.begins_word or not words:
            words.append([token])
        else:
            words[-1].append(token)
    return [
        LabelledToken(merge(word), word[0].start, word[-1].end, begins_word=True) for word in words
    ]


def _has_ends(labels: Sequence[str]) -> bool:
    """Whether the scheme marks ends as well as beginnings: BIOES or BILOU."""
    entities = [label for label in labels if label != "O"]
    prefixed = all(_PREFIXED.match(label) for label in entities)
    return prefixed and any(label[0] in _ENDS for label in entities)


def _split(label: str, has_ends: bool) -> tuple[str, str]:
    """Prefix and name; what has no prefix goes on."""
    if label[:2] in ("B-", "I-") or (has_ends and label != "O"):
        return label[0], label[2:]
    return "I", label


def _group(found: Sequence[_Labelled], labels: Sequence[tuple[str, str]]) -> list[Entity]:
    groups: list[list[_Labelled]] = []
    for token in found:
        prefix, name = labels[token.label]
        if groups:
            last_prefix, last_name = labels[groups[-1][-1].label]
            if name == last_name and prefix not in _BEGINS and last_prefix not in _ENDS:
                groups[-1].append(token)
                continue
        groups.append([token])
    return [
        Entity(
            labels[group[0].label][1],
            float(np.mean([token.score for token in group])),
            group[0].start,
            group[-1].end,
        )
        for group in groups
    ]
