"""The README's table of families is that of the committed rows."""

from scripts.families import Family, committed, rendered, table
from scripts.parts import README


def test_the_readmes_families_are_those_committed() -> None:
    readme = README.read_text(encoding="utf-8")
    assert committed()
    assert rendered(readme, committed()) == readme


def test_a_row_says_what_was_measured() -> None:
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
