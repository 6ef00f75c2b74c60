"""Entities of a text from the label probabilities of its tokens."""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

Scores = npt.NDArray[np.float32]  # [labels]: label probabilities of a token or a word
_PREFIXED = re.compile(r"[BIESLU]-.")
_ENDS = frozenset("ESLU")  # prefixes of an entity's last or only token
_BEGINS = frozenset("BSU")  # prefixes of its first or only token


class Aggregation(StrEnum):
    """How tokens become entities, as ``aggregation_strategy`` of ``transformers``.

    ``NONE``: each token is an entity. ``SIMPLE``: neighbouring tokens with one label. ``FIRST``,
    ``AVERAGE`` and ``MAX``: the same with words; a word gets the label of its first token, of the
    mean of its tokens' probabilities, or of its most certain token.
    """

    NONE = "none"
    SIMPLE = "simple"
    FIRST = "first"
    AVERAGE = "average"
    MAX = "max"


@dataclass(frozen=True, slots=True)
class LabelledToken:
    """A token or a word: label probabilities, and characters ``start`` to ``end``."""

    scores: Scores
    start: int
    end: int
    begins_word: bool


@dataclass(frozen=True, slots=True)
class Entity:
    """Characters ``start`` to ``end`` of the text.

    ``label`` has no prefix such as ``B-``, except with ``Aggregation.NONE``.
    """

    label: str
    score: float
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _BestLabel:
    """The likeliest label of a token or a word: its index, and its probability."""

    label: int
    score: float
    start: int
    end: int


def _first_scores(word: Sequence[LabelledToken]) -> Scores:
    return word[0].scores


def _mean_scores(word: Sequence[LabelledToken]) -> Scores:
    mean: Scores = np.stack([token.scores for token in word]).mean(0)
    return mean


def _surest_scores(word: Sequence[LabelledToken]) -> Scores:
    return max(word, key=lambda token: float(token.scores.max())).scores


_WORD_SCORES: dict[Aggregation, Callable[[Sequence[LabelledToken]], Scores]] = {
    Aggregation.FIRST: _first_scores,
    Aggregation.AVERAGE: _mean_scores,
    Aggregation.MAX: _surest_scores,
}


def find_entities(
    tokens: Sequence[LabelledToken],
    labels: Sequence[str],
    aggregation: Aggregation,
    ignored: Collection[str] = ("O",),
) -> list[Entity]:
    """The entities of a text, in order, as the pipelines of ``transformers`` find them.

    Neighbours with the same label form one entity. A new entity begins at ``B-`` and, in a BIOES or
    BILOU scheme, at ``S-`` or ``U-`` and after ``E-``, ``L-``, ``S-`` or ``U-``. Its score is the
    mean of its tokens' or words' probabilities.

    Args:
        tokens: of the text, without special tokens.
        labels: of the model, such as ``B-PER``.
        aggregation: how tokens become entities.
        ignored: labels that mark no entities; without prefix unless ``aggregation`` is ``NONE``.
    """
    if aggregation in _WORD_SCORES:
        tokens = _words(tokens, _WORD_SCORES[aggregation])
    best = []
    for token in tokens:
        label = int(token.scores.argmax())
        best.append(_BestLabel(label, float(token.scores[label]), token.start, token.end))
    if aggregation == Aggregation.NONE:
        entities = [Entity(labels[x.label], x.score, x.start, x.end) for x in best]
    else:
        has_ends = _has_ends(labels)
        entities = _group(best, [_split(label, has_ends) for label in labels])
    return [entity for entity in entities if entity.label not in ignored]


def _words(
    tokens: Sequence[LabelledToken], merge: Callable[[Sequence[LabelledToken]], Scores]
) -> list[LabelledToken]:
    """Merges the tokens of each word; ``merge`` gives the word's probabilities."""
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
    """Whether the scheme marks ends too: BIOES or BILOU."""
    entities = [label for label in labels if label != "O"]
    prefixed = all(_PREFIXED.match(label) for label in entities)
    return prefixed and any(label[0] in _ENDS for label in entities)


def _split(label: str, has_ends: bool) -> tuple[str, str]:
    """Prefix and name. A label without a prefix continues an entity, as ``I-`` does."""
    if label[:2] in ("B-", "I-") or (has_ends and label != "O"):
        return label[0], label[2:]
    return "I", label


def _group(tokens: Sequence[_BestLabel], labels: Sequence[tuple[str, str]]) -> list[Entity]:
    """Joins neighbours into entities; ``labels`` are split into prefix and name."""
    groups: list[list[_BestLabel]] = []
    for token in tokens:
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
