"""The README's table of faults is that of the committed rows."""

from scripts.faults import Row, committed, rendered, table
from scripts.parts import README


def test_the_readmes_faults_are_those_committed() -> None:
    readme = README.read_text(encoding="utf-8")
    assert committed()
    assert rendered(readme, committed()) == readme


def test_a_row_says_what_was_measured() -> None:
    row = Row(fault="X", must="Y", figures={"requests": 30, "p99_seconds": 0.01234})
    assert table([row]).splitlines()[-1] == "| X | Y | requests 30, p99 seconds 0.0123 |"
