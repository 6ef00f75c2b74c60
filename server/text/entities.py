"""Finds the entities of a text from the label probabilities of its tokens."""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

Scores = npt.NDArray[np.float32]  # [labels]: label probabilities of a token or a word
_PREFIXED = re.compile(r"[BIESLU]-.")
_ENDS = frozenset("ESLU")  # prefixes of an entity's last or only token
_BEGINS = frozenset("BSU")  # prefixes of an entity's first or only token


class Aggregation(StrEnum):
    """How tokens become entities, like ``aggregation_strategy`` of ``transformers``.

    With ``NONE``, each token is an entity. ``SIMPLE`` joins adjacent tokens with the same label.
    ``FIRST``, ``AVERAGE`` and ``MAX`` join words instead; a word gets the label of its first token,
    of the mean of its tokens' probabilities, or of its token with the highest probability.
    """

    NONE = "none"
    SIMPLE = "simple"
    FIRST = "first"
    AVERAGE = "average"
    MAX = "max"


@dataclass(frozen=True, slots=True)
class LabelledToken:
    """A token or a word: its label probabilities, and its characters ``start`` to ``end``."""

    scores: Scores
    start: int
    end: int
    begins_word: bool


@dataclass(frozen=True, slots=True)
class Entity:
    """A labelled span of the text: the characters ``start`` to ``end``.

    ``label`` has no prefix such as ``B-``, except with ``Aggregation.NONE``.
    """

    label: str
    score: float
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _BestLabel:
    """A token or word with the index of its most likely label and its probability."""

    label: int
    score: float
    start: int
    end: int


def _first_scores(word: Sequence[LabelledToken]) -> Scores:
    return word[0].scores


def _mean_scores(word: Sequence[LabelledToken]) -> Scores:
    mean: Scores = np.stack([token.scores for token in word]).mean(0)
    return mean


def _max_scores(word: Sequence[LabelledToken]) -> Scores:
    return max(word, key=lambda token: float(token.scores.max())).scores


_WORD_SCORES: dict[Aggregation, Callable[[Sequence[LabelledToken]], Scores]] = {
    Aggregation.FIRST: _first_scores,
    Aggregation.AVERAGE: _mean_scores,
    Aggregation.MAX: _max_scores,
}


def find_entities(
    tokens: Sequence[LabelledToken],
    labels: Sequence[str],
    aggregation: Aggregation,
    ignored: Collection[str] = ("O",),
) -> list[Entity]:
    """Finds the entities of a text, in order, like the pipelines of ``transformers``.

    Adjacent tokens with the same label form one entity. A new entity begins at ``B-`` and, in a
    BIOES or BILOU scheme, at ``S-`` or ``U-`` and after ``E-``, ``L-``, ``S-`` or ``U-``. Its score
    is the mean of its tokens' or words' probabilities.

    Args:
        tokens: the text's tokens, without special tokens.
        labels: the model's labels, such as ``B-PER``.
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
    """Merges the tokens of each word. ``merge`` computes the word's label probabilities."""
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
    """Whether the labelling scheme also marks ends (BIOES or BILOU)."""
    entities = [label for label in labels if label != "O"]
    prefixed = all(_PREFIXED.match(label) for label in entities)
    return prefixed and any(label[0] in _ENDS for label in entities)


def _split(label: str, has_ends: bool) -> tuple[str, str]:
    """The prefix and name of a label. A label without a prefix continues an entity, like ``I-``."""
    if label[:2] in ("B-", "I-") or (has_ends and label != "O"):
        return label[0], label[2:]
    return "I", label


def _group(tokens: Sequence[_BestLabel], labels: Sequence[tuple[str, str]]) -> list[Entity]:
    """Joins adjacent tokens into entities. ``labels`` has the prefix and name of each label."""
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
