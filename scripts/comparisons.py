"""Writes the README's comparisons with peers from the reports in ``loadtest/results``.

    python -m scripts.comparisons [--check]

The reports are those of ``python -m loadtest compare``. ``--check`` changes nothing and fails if
the README does not say what they say.
"""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scripts.parts import ROOT, main, replaced

RESULTS = ROOT / "loadtest" / "results"
Row = dict[str, Any]
SOONER = "1 / seconds "  # so that more is better in all rows


def table(rows: Iterable[Row]) -> str:
    """Its Markdown: a line for each work, with all its batches or numbers of clients."""
    lines = [
        "| task | work | precision | at | Triune | × the best peer | which |",
        "|---|---|---|---|---|---|---|",
    ]
    works: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        works.setdefault(_work(row), []).append(row)
    for (task, level, work, precision, metric), same in works.items():
        measured = [row for row in same if row["ratio_to_best_peer"] is not None]
        if not measured:
            continue
        what = "clients" if level == "server" else "together"
        peers = dict.fromkeys(str(row["best_peer"]) for row in measured)
        lines.append(
            f"| {task}, {level} | {work} | {precision} "
            f"| {_joined(map(_size, measured))} {what} "
            f"| {_measured(metric, [row['ours'] for row in measured])} "
            f"| {_joined(format(row['ratio_to_best_peer'], '.2f') for row in measured)} "
            f"| {', '.join(peers)} |"
        )
    return "\n".join(lines)


def places(rows: Sequence[Row]) -> str:
    """Where each task was measured, in a sentence for each machine.

    With the precision, where not all of a task's were measured on one.
    """
    machines: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        machines.setdefault((row["task"], row["level"]), set()).add(row["where"])
    found: dict[str, dict[str, None]] = {}
    for row in rows:
        task, level = row["task"], row["level"]
        is_split = len(machines[task, level]) > 1
        what = f"{task} ({level}, {row['precision']})" if is_split else f"{task} ({level})"
        found.setdefault(row["where"], {})[what] = None
    return "\n".join(f"Measured on {where}: {', '.join(what)}." for where, what in found.items())


def committed() -> list[Row]:
    """The rows of all reports of comparisons, by task, level and precision."""
    files = sorted(RESULTS.glob("compare-*.json"), key=lambda path: path.stem)
    return newest([json.loads(path.read_text("utf-8")) for path in files])


def newest(reports: Sequence[Mapping[str, Any]]) -> list[Row]:
    """The rows of all reports; of what several measured, that of the one that began last."""
    found: dict[tuple[str, ...], tuple[str, Row]] = {}
    for report in reports:
        machine = report["machine"]
        where = f"{machine['cores']} cores of {machine['processor']}"
        for row in report["rows"]:
            key = (*_work(row), str(_size(row)))
            if key not in found or report["started"] > found[key][0]:
                found[key] = report["started"], {**row, "where": where}
    return [row for _, row in found.values()]


def rendered(readme: str, rows: Sequence[Row]) -> str:
    """``readme`` with the comparisons in ``rows``."""
    return replaced(readme, "comparisons", f"{table(rows)}\n\n{places(rows)}")


def _work(row: Row) -> tuple[str, ...]:
    return tuple(str(row[key]) for key in ("task", "level", "work", "precision", "metric"))


def _size(row: Row) -> Any:
    """How many at a time."""
    return row.get("batch", row.get("clients"))


def _measured(metric: str, values: list[float]) -> str:
    """Rates as they are; of what is better the sooner, the time."""
    if not metric.startswith(SOONER):
        return f"{_joined(map(_number, values))} {metric}"
    milliseconds = _joined(_number(1e3 / value) for value in values)
    return f"{milliseconds} ms {metric.removeprefix(SOONER)}"


def _joined(values: Iterable[object]) -> str:
    return " · ".join(map(str, values))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


if __name__ == "__main__":
    sys.exit(main("comparisons", "loadtest/results", lambda readme: rendered(readme, committed())))
