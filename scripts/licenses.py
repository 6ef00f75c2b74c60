"""Licences of packages, and which are allowed."""

import re
from email.message import Message
from importlib.metadata import PackageMetadata

ALLOWED = {
    *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "HPND", "ISC"),
    *("LLVM-exception", "MIT", "MIT-0", "MIT-CMU", "MPL-2.0", "NCSA", "PSF-2.0", "Python-2.0"),
    *("Unlicense", "Zlib", "CNRI-Python", "BlueOak-1.0.0"),
}
"""SPDX identifiers. MPL-2.0 covers its own files, which are not changed here."""

EXCEPTIONS = {"atheris": "Apache-2.0, in its LICENSE and sources"}
"""Packages whose metadata names no licence or none of these: the licence, read in the package."""

# Names in classifiers and in the free text of older metadata.
_NAMES = {
    "apache": "Apache-2.0",
    "apache 2": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache 2.0 license": "Apache-2.0",
    "apache license": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "apache software license 2.0": "Apache-2.0",
    "apache license v2.0": "Apache-2.0",
    "bsd": "BSD-3-Clause",
    "bsd license": "BSD-3-Clause",
    "3-clause bsd license": "BSD-3-Clause",
    "new bsd": "BSD-3-Clause",
    "isc license": "ISC",
    "isc license (iscl)": "ISC",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
    "the unlicense (unlicense)": "Unlicense",
    "zlib/libpng license": "Zlib",
}
_OPERATOR = re.compile(r"\b(AND|OR|WITH)\b|([()])")


def license_of(fields: PackageMetadata | Message) -> str:
    """The SPDX expression of a package, from what its metadata has; empty if it names none."""
    expression = str(fields["License-Expression"] or "")
    if expression:
        return expression
    classifiers = [
        str(value).rpartition(" :: ")[2]
        for value in fields.get_all("Classifier") or ()
        if str(value).startswith("License :: ") and not str(value).endswith("OSI Approved")
    ]
    if classifiers:
        return " OR ".join(_spdx(name) for name in classifiers)
    text = str(fields["License"] or "").strip()
    return _spdx(text.splitlines()[0]) if text else ""


def is_allowed(package: str, expression: str) -> bool:
    """Whether allowed licences alone satisfy ``expression``, in SPDX's syntax (annex D).

    False for what is no such expression.
    """
    if package in EXCEPTIONS:
        return True
    words = [word.strip() for word in _OPERATOR.split(expression) if word and word.strip()]
    try:
        return _alternatives(words) and not words
    except IndexError:
        return False


def _alternatives(words: list[str]) -> bool:
    """Takes an expression from the front of ``words``. AND binds more tightly than OR."""
    allowed = _conjunction(words)
    while words and words[0] == "OR":
        del words[0]
        allowed = _conjunction(words) or allowed
    return allowed


def _conjunction(words: list[str]) -> bool:
    allowed = _operand(words)
    while words and words[0] in ("AND", "WITH"):
        del words[0]
        allowed = _operand(words) and allowed
    return allowed


def _operand(words: list[str]) -> bool:
    word = words.pop(0)
    if word == "(":
        allowed = _alternatives(words)
        return words.pop(0) == ")" and allowed
    return word in ALLOWED


def _spdx(name: str) -> str:
    return _NAMES.get(name.strip().lower(), name.strip())
