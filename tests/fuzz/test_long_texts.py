"""Errors that repeat a client's text stay small and printable, whichever field has the text."""

from tests.fuzz.targets import long_texts
from tests.fuzz.test_fuzz import failure


def test_long_texts_in_every_field_break_no_error() -> None:
    inputs = list(long_texts.seeds())
    failures = [failure(long_texts, data) for data in inputs]
    assert len(inputs) > 300
    assert not any(failures), next(filter(None, failures))
