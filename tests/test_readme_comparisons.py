"""The README's comparisons are those of the committed reports."""

from typing import Any

from scripts.comparisons import Row, committed, newest, places, rendered, table
from scripts.parts import README


def measured(**values: Any) -> Row:
    """A row of a report, with these values besides or instead."""
    return {
        "task": "generate",
        "level": "engine",
        "work": "decode",
        "precision": "int8",
        "metric": "tokens/s",
        "best_peer": "a",
    } | values


def test_the_readmes_comparisons_are_those_committed() -> None:
    readme = README.read_text(encoding="utf-8")
    assert committed()
    assert rendered(readme, committed()) == readme


def test_a_line_has_all_batches_that_were_measured() -> None:
    rows: list[Row] = [
        measured(batch=1, ours=95.7, ratio_to_best_peer=1.025),
        measured(batch=4, ours=254.2, ratio_to_best_peer=1.794, best_peer="b"),
        measured(batch=8, ours=300.0, ratio_to_best_peer=None, best_peer=None),
    ]
    assert table(rows).splitlines()[-1] == (
        "| generate, engine | decode | int8 | 1 · 4 together | 96 · 254 tokens/s "
        "| 1.02 · 1.79 | a, b |"
    )


def test_rows_of_servers_are_gathered_by_what_was_measured() -> None:
    row = measured(
        task="embed", level="server", work="32 tokens", ours=80.0, ratio_to_best_peer=1.5
    )
    rows: list[Row] = [
        {**row, "clients": clients, "metric": metric}
        for clients in (1, 16)
        for metric in ("requests/s", "1 / seconds to answer, p99")
    ]
    assert [line.split("|")[4:6] for line in table(rows).splitlines()[2:]] == [
        [" 1 · 16 clients ", " 80 · 80 requests/s "],
        [" 1 · 16 clients ", " 12 · 12 ms to answer, p99 "],
    ]


def test_what_is_better_the_sooner_is_told_as_a_time() -> None:
    row = measured(
        task="translate",
        level="server",
        work="30 to 30",
        metric="1 / seconds to answer, p50",
        clients=8,
        ours=5.0,
        ratio_to_best_peer=2.02,
    )
    assert table([row]).splitlines()[-1] == (
        "| translate, server | 30 to 30 | int8 | 8 clients | 200 ms to answer, p50 | 2.02 | a |"
    )


def test_where_each_task_was_measured_is_said_once_for_each_machine() -> None:
    rows = [
        measured(where="2 cores of A"),
        measured(where="2 cores of A", work="prefill"),
        measured(where="2 cores of B", task="embed", level="server"),
        measured(where="2 cores of A", level="server"),
    ]
    assert places(rows).splitlines() == [
        "Measured on 2 cores of A: generate (engine), generate (server).",
        "Measured on 2 cores of B: embed (server).",
    ]


def test_precisions_are_named_where_machines_share_a_task() -> None:
    rows = [
        measured(where="2 cores of A"),
        measured(where="2 cores of B", precision="fp32"),
        measured(where="2 cores of B", level="server"),
    ]
    assert places(rows).splitlines() == [
        "Measured on 2 cores of A: generate (engine, int8).",
        "Measured on 2 cores of B: generate (engine, fp32), generate (server).",
    ]


def test_of_two_reports_of_the_same_the_later_counts() -> None:
    older = [measured(batch=batch, ours=1.0) for batch in (1, 4)]
    later = [measured(batch=4, ours=2.0)]
    for reports in ((older, later), (later, older)):
        dated = [
            {
                "started": f"2026-11-2{2 if rows is later else 1}T09:00:00+00:00",
                "machine": {"cores": 2, "processor": "A"},
                "rows": rows,
            }
            for rows in reports
        ]
        assert {row["batch"]: row["ours"] for row in newest(dated)} == {1: 1.0, 4: 2.0}
