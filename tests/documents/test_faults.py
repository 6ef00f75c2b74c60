"""The table of faults says what the tests measured."""

from scripts.faults import Row, committed, long_runs, table


def test_the_rows_of_long_runs_are_committed() -> None:
    by_fault = {row.fault: row for row in committed()}
    for row in long_runs():
        assert by_fault[row.fault] == row


def test_a_row_shows_the_figures_with_their_units() -> None:
    row = Row(fault="X", must="Y", figures={"requests": 30, "p99_seconds": 0.01234})
    assert table([row]).splitlines()[-1] == "| X | Y | requests 30, p99 seconds 0.0123 |"
