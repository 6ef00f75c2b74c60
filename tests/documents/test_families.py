"""The table of families says what the tests measured."""

import re

import pytest

from scripts.families import Family, committed, table
from scripts.generated_sections import ROOT


def test_there_are_committed_rows_of_every_kind() -> None:
    assert {row.kind for row in committed()} == {"encoder", "decoder", "encoder_decoder"}


def test_the_readme_counts_the_families() -> None:
    (count,) = re.findall(r"all (\d+) families", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert int(count) == len({row.family.split(" (")[0] for row in committed()})


@pytest.mark.parametrize("kind", ["encoder", "decoder", "encoder-decoder"])
def test_the_readme_names_families_of_the_table(kind: str) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (cell,) = re.findall(rf"^\| {kind} \| ([^|]+) \|", text, re.MULTILINE)
    families = {row.family for row in committed() if row.kind == kind.replace("-", "_")}
    for name in re.split(r", |; of (?:images|recordings) ", cell):
        assert any(family.startswith(name) for family in families), name


def test_a_row_shows_parity_and_sizes() -> None:
    row = Family(
        family="X",
        kind="encoder_decoder",
        operators=("A", "B"),
        max_absolute_error=3.14e-6,
        tokens_compared=64,
        tokens_equal=63,
        tokens_tied=1,
        bytes_by_precision={"fp32": 4000, "int8": 1000},
    )
    assert table([row]).splitlines()[-1] == (
        "| X | encoder-decoder | `A`, `B` | 3e-06 | 63 of 64, 1 tied | fp32 4 kB, int8 1 kB |"
    )
