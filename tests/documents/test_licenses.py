"""Licences of packages, as SPDX expressions."""

from email.message import Message

import pytest

from scripts.licenses import EXCEPTIONS, is_allowed, license_of


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("GPL-3.0-only", False),
        ("MIT OR GPL-3.0-only", True),
        ("MIT AND GPL-3.0-only", False),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("Apache-2.0 WITH another-exception", False),
        ("MIT AND (BSD-2-Clause OR LGPL-2.1-or-later)", True),
        ("MIT AND (LGPL-2.1-or-later OR GPL-3.0-only)", False),
        ("GPL-3.0-only OR MIT AND ISC", True),
        ("(GPL-3.0-only OR MIT) AND GPL-3.0-only", False),
        ("((MIT))", True),
        ("", False),
        ("MIT AND", False),
        ("MIT AND (ISC", False),
        ("MIT)", False),
        ("MIT ISC", False),
    ],
)
def test_expressions(expression: str, allowed: bool) -> None:
    assert is_allowed("a-package", expression) == allowed


def test_exceptions_are_named() -> None:
    assert is_allowed(next(iter(EXCEPTIONS)), "")


def test_older_metadata_is_understood() -> None:
    fields = Message()
    fields["Classifier"] = "License :: OSI Approved"
    fields["Classifier"] = "License :: OSI Approved :: MIT License"
    assert license_of(fields) == "MIT"
    fields = Message()
    fields["License"] = "Apache License 2.0"
    assert license_of(fields) == "Apache-2.0"
    assert not license_of(Message())
