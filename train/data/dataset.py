"""A data set in three disjoint parts, and its origins."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from model.examples import (
    AnswerExample,
    ClassificationExample,
    Example,
    MaskedExample,
    RankingExample,
    TaggingExample,
    TextExample,
    TranslationExample,
)
from train.errors import DataError


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """A file or generator that examples come from. ``sha256``: hash of its contents."""

    name: str
    sha256: str
    license: str
    num_examples: int
    url: str = ""


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """The parts ``train``, ``validation`` and ``held_out`` share no example."""

    name: str
    train: Sequence[Example]
    validation: Sequence[Example]
    held_out: Sequence[Example]
    origins: tuple[Origin, ...] = field(default=())


def sha256_of(data: bytes) -> str:
    """SHA-256 of ``data``, in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def hash_of(examples: Sequence[Example]) -> str:
    """SHA-256 of the examples as JSON lines."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(msgspec.json.encode(example) + b"\n")
    return digest.hexdigest()


def texts_of(examples: Sequence[Example]) -> Iterator[str]:
    """Every text of ``examples``, for the tokenizer."""
    for example in examples:
        match example:
            case TranslationExample():
                yield from (example.source, example.target)
            case TextExample():
                if not example.turns:
                    yield example.prompt + example.text
                yield from (turn.content for turn in example.turns)
            case MaskedExample():
                yield from (example.text, example.following)
            case ClassificationExample():
                yield from (example.text, example.pair)
            case TaggingExample():
                yield example.text
            case AnswerExample():
                yield from (example.question, example.context)
            case RankingExample():
                yield from (example.query, example.relevant, *example.others)


def labels_of(examples: Sequence[Example]) -> tuple[str, ...]:
    """The labels of a classifier, sorted; those of tagging as ``O``, ``B-X``, ``I-X``.

    Raises:
        DataError: there are texts to tag, but no entity.
    """
    classes: set[str] = set()
    entities: set[str] = set()
    for example in examples:
        if isinstance(example, ClassificationExample):
            classes.add(example.label)
        elif isinstance(example, TaggingExample):
            entities.update(span.label for span in example.spans)
        elif isinstance(example, AnswerExample):
            return ("start", "end")
        elif isinstance(example, RankingExample):
            return ("relevance",)
    if entities:
        return ("O", *(f"{mark}-{name}" for name in sorted(entities) for mark in "BI"))
    if not classes and isinstance(examples[0], TaggingExample):
        raise DataError("data: no train example has an entity")
    return tuple(sorted(classes))
