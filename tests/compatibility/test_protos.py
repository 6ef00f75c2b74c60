"""Older clients keep working: all fields, enum values and methods keep name and number.

Additions are allowed.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.compatibility.protos import STORED, shape

STORED_SHAPE = json.loads(STORED.read_text())


def missing(stored: Any, current: Any, path: str) -> Iterator[str]:
    """Yields entries of ``stored`` that are missing or changed in ``current``."""
    if not isinstance(stored, dict) or not isinstance(current, dict):
        if stored != current:
            yield f"{path} is {current!r}, was {stored!r}"
        return
    for key, value in stored.items():
        inner = f"{path}: {key}"
        if key not in current:
            yield f"{inner} is gone"
        else:
            yield from missing(value, current[key], inner)


@pytest.mark.parametrize("part", sorted(STORED_SHAPE))
def test_protos_keep_all_fields_and_numbers(part: str) -> None:
    assert STORED_SHAPE[part]
    assert not list(missing(STORED_SHAPE[part], shape()[part], part))


def test_detects_changed_protos() -> None:
    name = "triune.v1.GenerateRequest"
    stored = {name: STORED_SHAPE["messages"][name]}
    model = stored[name]["1"]
    renamed = {name: {**stored[name], "1": {**model, "name": "models"}}}
    renumbered = {
        name: {("99" if number == "1" else number): x for number, x in stored[name].items()}
    }
    added = {name: {**stored[name], "99": model}, "triune.v1.New": {}}
    assert list(missing(stored, renamed, "")) == [f": {name}: 1: name is 'models', was 'model'"]
    assert list(missing(stored, renumbered, "")) == [f": {name}: 1 is gone"]
    assert not list(missing(stored, added, ""))
