"""The tables of comparisons say what the reports say."""

from typing import Any

import pytest

from scripts import comparisons
from scripts.comparisons import committed, machines, newest, summary, table
from scripts.fidelity import UNKNOWN, Fidelity, Row

ANSWERS = {"top_1": 0.9651, "rms_nats": 0.0701}
TEXTS = {"chrf": 98.76, "identical": 0.905}
MACHINE = {"cores": 2, "processor": "p"}
FIDELITY = Fidelity(
    by_model={("embed", "int8"): {"min_cosine": 0.99467}, ("generate", "int8"): ANSWERS}
)


def measured(**values: Any) -> Row:
    """A row of a report, with these values."""
    return {
        "task": "generate",
        "level": "engine",
        "work": "decode",
        "precision": "int8",
        "metric": "tokens/s",
        "best_peer": "a",
    } | values


def test_a_line_has_all_batches_that_were_measured() -> None:
    rows: list[Row] = [
        measured(batch=1, ours=95.7, ratio_to_best_peer=1.025),
        measured(batch=4, ours=254.2, ratio_to_best_peer=1.794, best_peer="b"),
        measured(batch=8, ours=300.0, ratio_to_best_peer=None, best_peer=None),
    ]
    assert table(rows, FIDELITY).splitlines()[-1] == (
        "| generate, engine | decode | int8 | 1 · 4 together | 96 · 254 tokens/s "
        "| 1.02 · 1.79 | a, b | top-1 0.965, rms 0.070 |"
    )


def test_rows_of_servers_are_grouped_by_metric() -> None:
    row = measured(
        task="embed", level="server", work="32 tokens", ours=80.0, ratio_to_best_peer=1.5
    )
    rows: list[Row] = [
        {**row, "clients": clients, "metric": metric}
        for clients in (1, 16)
        for metric in ("requests/s", "1 / seconds to answer, p99")
    ]
    assert [line.split("|")[4:6] for line in table(rows, FIDELITY).splitlines()[2:]] == [
        [" 1 · 16 clients ", " 80 · 80 requests/s "],
        [" 1 · 16 clients ", " 12 · 12 ms to answer, p99 "],
    ]


def test_protocols_of_our_server_have_lines_of_their_own() -> None:
    row = measured(task="embed", level="server", work="w", clients=8, ours=80.0)
    row["ratio_to_best_peer"] = 1.5
    rows: list[Row] = [row, {**row, "protocol": "triune"}, {**row, "protocol": "http"}]
    assert [line.split("|")[1] for line in table(rows, FIDELITY).splitlines()[2:]] == [
        " embed, server ",
        " embed, server by http ",
    ]


def test_a_model_that_is_named_has_lines_and_a_fidelity_of_its_own() -> None:
    other = {"top_1": 0.99, "rms_nats": 0.01}
    row = measured(batch=1, ours=80.0, ratio_to_best_peer=1.5, fidelity={"ours": ANSWERS})
    rows: list[Row] = [row, {**row, "model": "other", "fidelity": {"ours": other}}]
    fidelity = Fidelity.committed(rows)
    assert [line.split("|")[2] for line in table(rows, fidelity).splitlines()[2:]] == [
        " decode ",
        " other: decode ",
    ]
    assert fidelity.by_model == {("generate", "int8"): ANSWERS}
    assert len(newest([{"started": "1", "machine": MACHINE, "rows": rows}])) == 2


def test_inverted_times_are_shown_in_milliseconds() -> None:
    row = measured(
        task="translate",
        level="server",
        work="30 to 30",
        metric="1 / seconds to answer, p50",
        clients=8,
        ours=5.0,
        ratio_to_best_peer=2.02,
    )
    assert table([row], FIDELITY).splitlines()[-1] == (
        "| translate, server | 30 to 30 | int8 | 8 clients | 200 ms to answer, p50 | 2.02 | a | – |"
    )


def test_the_summary_names_the_options_that_measure_a_row_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = measured(task="embed", level="server", work="32 tokens", metric="requests/s")
    row |= {"clients": 8, "ours": 80.0, "ratio_to_best_peer": 1.5}
    keys = tuple(row[key] for key in ("task", "level", "work", "precision", "metric"))
    monkeypatch.setattr(comparisons, "SUMMARY", (keys,))
    assert summary([row], FIDELITY).splitlines()[-1] == (
        "| `--task embed --level server` | int8, 32 tokens, 8 clients | 80 requests/s "
        "| 1.50 (a) | cosine ≥ 0.9946 |"
    )
    with pytest.raises(KeyError):
        summary([], FIDELITY)


@pytest.mark.parametrize(
    ("row", "fidelity"),
    [
        (
            measured(
                task="embed",
                fidelity={"ours": {"min_cosine": 0.99749}, "a": {"min_cosine": 0.98999}},
            ),
            "cosine ≥ 0.9974 (peer 0.9899)",
        ),
        (measured(task="embed", fidelity={"ours": {"min_cosine": 0.99749}}), "cosine ≥ 0.9974"),
        (measured(task="embed", level="server"), "cosine ≥ 0.9946"),
        (measured(task="embed", precision="fp32"), UNKNOWN),
        (measured(level="server"), "top-1 0.965, rms 0.070"),
        (
            measured(fidelity={"ours": ANSWERS, "a": {"top_1": 0.91, "rms_nats": 0.2}}),
            "top-1 0.965, rms 0.070 (peer 0.910, 0.200)",
        ),
        (
            measured(task="translate", level="text", fidelity={"ours": TEXTS, "a": TEXTS}),
            "chrF 98.8, identical 90% (peer 98.8, 90%)",
        ),
        (measured(precision="fp32"), UNKNOWN),
        (measured(task="translate"), UNKNOWN),
    ],
)
def test_the_fidelity_is_that_of_the_model_that_was_measured(row: Row, fidelity: str) -> None:
    assert FIDELITY.of(row) == fidelity


def test_every_embedding_that_was_compared_has_a_fidelity() -> None:
    rows = committed()
    fidelity = Fidelity.committed(rows)
    embeddings = [row for row in rows if row["task"] == "embed"]
    assert embeddings
    assert all(fidelity.of(row).startswith("cosine") for row in embeddings)


def test_each_machine_is_named_once() -> None:
    rows = [
        measured(machine="2 cores of A"),
        measured(machine="2 cores of A", work="prefill"),
        measured(machine="2 cores of B", task="embed", level="server"),
        measured(machine="2 cores of A", level="server"),
    ]
    assert machines(rows).splitlines() == [
        "Measured on 2 cores of A: generate (engine), generate (server).",
        "Measured on 2 cores of B: embed (server).",
    ]


def test_precisions_are_named_where_they_ran_on_different_machines() -> None:
    rows = [
        measured(machine="2 cores of A"),
        measured(machine="2 cores of B", precision="fp32"),
        measured(machine="2 cores of B", level="server"),
    ]
    assert machines(rows).splitlines() == [
        "Measured on 2 cores of A: generate (engine, int8).",
        "Measured on 2 cores of B: generate (engine, fp32), generate (server).",
    ]


def test_the_later_of_two_reports_counts() -> None:
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
