"""A client of before works: what its messages are made of is still there, under its numbers.

New messages, fields, values and methods are fine.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.compatibility.protos import STORED, shape

STORED_SHAPE = json.loads(STORED.read_text())


def missing(stored: Any, current: Any, path: str) -> Iterator[str]:
    """Whatever of ``stored`` is not in ``current``, or has changed."""
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
def test_everything_is_still_there_under_its_number(part: str) -> None:
    assert STORED_SHAPE[part]
    assert not list(missing(STORED_SHAPE[part], shape()[part], part))


def test_what_changes_is_found() -> None:
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
