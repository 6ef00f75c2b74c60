"""One file of examples, JSON lines or a table, divided into the three parts."""

import csv
from collections.abc import Sequence
from pathlib import Path

import msgspec

from model.bundle import Task
from model.examples import (
    EXAMPLES,
    ClassificationExample,
    Example,
    TaggingExample,
    parse_examples,
)
from train.data.dataset import Dataset, Origin, hash_of, sha256_of
from train.errors import DataError
from train.recipe import Recipe

_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_MAX_SHARE = 10
"""Validation and held-out set have at most one of so many examples each."""


def file_dataset(path: Path, task: Task, recipe: Recipe) -> Dataset:
    """The examples of a file, each in the part that its contents choose.

    Added examples thus leave the others in their parts, and equal ones are in the same part. The
    first example of each label trains.

    Args:
        path: JSON lines, or ``.csv`` or ``.tsv`` with a line of column names.
        task: that of the examples.
        recipe: has the sizes of the parts, each of which is at most a tenth of the file.

    Raises:
        DataError: the file cannot be read, a line is no example of the task, or there are too few.
    """
    try:
        data = path.read_bytes()
        delimiter = _DELIMITERS.get(path.suffix.lower())
        if delimiter is None:
            examples = parse_examples(data, task, path.name)
        else:
            examples = _parse_table(data, delimiter, task, path.name)
    except OSError as error:
        raise DataError(f"data.source: {path}: {error.strerror}") from error
    except ValueError as error:
        raise DataError(f"data.source: {error}") from error
    train, validation, held_out = _parts(examples, recipe, path.name)
    origin = Origin(
        name=path.name, sha256=sha256_of(data), license="not stated", num_examples=len(examples)
    )
    return Dataset(
        name=path.stem, train=train, validation=validation, held_out=held_out, origins=(origin,)
    )


def _parse_table(data: bytes, delimiter: str, task: Task, origin: str) -> list[Example]:
    """The examples of a table, whose columns have the names of an example's fields.

    Raises:
        ValueError: a line is not an example of ``task``; names ``origin`` and the line.
    """
    lines = data.decode("utf-8-sig").splitlines(keepends=True)  # spreadsheets write a mark first
    rows = csv.DictReader(lines, delimiter=delimiter, restkey="", strict=True)
    examples: list[Example] = []
    try:
        for row in rows:
            if "" in row:
                raise ValueError("has more fields than the first line")
            given = {name: value for name, value in row.items() if value is not None}
            examples.append(msgspec.convert(given, EXAMPLES[task], strict=False))
    except (csv.Error, ValueError) as error:
        raise ValueError(f"{origin}: line {rows.reader.line_num}: {error}") from error
    return examples


def _parts(
    examples: Sequence[Example], recipe: Recipe, origin: str
) -> tuple[list[Example], list[Example], list[Example]]:
    keys = [hash_of([example]) for example in examples]
    named = dict(zip(keys, examples, strict=True))
    largest = len(named) // _MAX_SHARE
    if not largest:
        raise DataError(f"data.source: {origin} needs 10 different examples, and has {len(named)}")
    free = sorted(named.keys() - _first_of_labels(keys, examples))
    num_held_out = min(recipe.data.num_held_out, largest)
    end = num_held_out + min(recipe.data.num_validation, largest)
    if end > len(free):
        raise DataError(f"data.source: {origin} has too few examples of each label")
    held_out, validation = free[:num_held_out], free[num_held_out:end]
    reserved = {*held_out, *validation}
    train = [example for key, example in zip(keys, examples, strict=True) if key not in reserved]
    return train, [named[key] for key in validation], [named[key] for key in held_out]


def _first_of_labels(keys: Sequence[str], examples: Sequence[Example]) -> set[str]:
    """The keys of the first example of each label."""
    first: dict[str, str] = {}
    for key, example in zip(keys, examples, strict=True):
        for label in _labels(example):
            first.setdefault(label, key)
    return set(first.values())


def _labels(example: Example) -> list[str]:
    if isinstance(example, ClassificationExample):
        return [example.label]
    if isinstance(example, TaggingExample):
        return [span.label for span in example.spans]
    return []
