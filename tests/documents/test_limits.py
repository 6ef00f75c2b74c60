"""The documents stay short enough to be read."""

import re
import subprocess
from pathlib import Path

import pytest

from scripts.generated_sections import ROOT

RECORDS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
INDEX = ROOT / "docs" / "decisions" / "README.md"
README = ROOT / "README.md"
_RECORD = re.compile(r"docs/decisions/(\d{4}(?:-[\w-]+\.md)?)")
HALF_AN_HOUR_OF_WORDS = 8000


def words(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").split())


def test_the_readme_is_for_a_user_in_a_hurry() -> None:
    assert words(README) <= 1200


@pytest.mark.parametrize("command", ["make serve", "triune generate", "make test"])
def test_the_readme_has_the_first_commands(command: str) -> None:
    assert re.search(rf"^    .*{command}\b", README.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("record", RECORDS, ids=lambda path: path.stem)
def test_a_record_has_its_four_parts_in_25_lines(record: Path) -> None:
    text = record.read_text(encoding="utf-8")
    lines = text.splitlines()
    assert len(lines) <= 25
    assert lines[0].startswith(f"# {record.name[:4]}. ")
    assert all(len(line) <= 110 for line in lines)
    parts = re.findall(r"^(Status:|\*\*\w+\.\*\*)", text, re.MULTILINE)
    assert parts == ["Status:", "**Context.**", "**Decision.**", "**Consequences.**"]


def test_all_records_are_listed_once_by_their_titles() -> None:
    listed = re.findall(r"^- \[\d{4}\]\((.+?)\) (.+)$", INDEX.read_text("utf-8"), re.MULTILINE)
    titles = {
        record.name: record.read_text("utf-8").splitlines()[0].partition(". ")[2]
        for record in RECORDS
    }
    assert len(listed) == len(titles)
    assert dict(listed) == titles


def test_every_record_that_the_code_names_exists() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "*.py", "*.cc", "*.h", "*.toml", "Makefile", "Dockerfile"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    existing = {record.name for record in RECORDS} | {record.name[:4] for record in RECORDS}
    missing = {
        f"{name}: {record}"
        for name in listed.stdout.splitlines()
        if (ROOT / name).exists()
        for record in _RECORD.findall((ROOT / name).read_text(encoding="utf-8"))
        if record not in existing
    }
    assert missing == set()


def test_all_records_take_half_an_hour() -> None:
    assert sum(words(path) for path in [*RECORDS, INDEX]) <= HALF_AN_HOUR_OF_WORDS
