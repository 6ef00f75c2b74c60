"""Docstrings and comments are sentences with a subject, not "Of the runner's cache."."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = (
    *("client", "export", "loadtest", "model", "native", "scripts", "server", "tests", "train"),
    "triune",
)
SUFFIXES = {".py", ".cc", ".h"}
# A docstring or a comment that begins with a genitive, whose noun the reader has to guess.
_GENITIVE = re.compile(
    r'^\s*(?:"""|# |// )Of (?:a|an|the|each|every|all|its|their)\b', re.MULTILINE
)


def genitives(text: str) -> list[str]:
    return [match[0].strip() for match in _GENITIVE.finditer(text)]


@pytest.mark.parametrize("folder", FOLDERS)
def test_none_begins_with_a_genitive(folder: str) -> None:
    files = [path for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    assert files
    found = {str(path): lines for path in files if (lines := genitives(path.read_text()))}
    assert not found


@pytest.mark.parametrize(
    "text", ['    """Of a text.', "# Of the tokens", "int x;\n  // Of each row: its sum\n"]
)
def test_a_genitive_is_found(text: str) -> None:
    assert genitives(text)


@pytest.mark.parametrize("text", ['"""Often."""', "# Of course", "x = 1  # of a row"])
def test_other_lines_are_not(text: str) -> None:
    assert not genitives(text)
