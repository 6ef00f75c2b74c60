"""Generates the comparison with other engines and servers from ``loadtest/results``.

    python -m scripts.comparisons [--check]

The reports come from ``python -m loadtest compare``. All rows go to ``docs/performance.md``, those
of ``OTHER_MACHINES`` to tables of their own, and a selection to ``README.md``. ``--check`` changes
nothing and fails if a document differs from the reports.
"""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from scripts.fidelity import Fidelity, Row
from scripts.generated_sections import ROOT, Section, main

RESULTS = ROOT / "loadtest" / "results"
OTHER_MACHINES = ("zen5", "zen3")
"""Prefixes of reports, and names of their tables."""
NATIVE = "triune"
INVERSE_SECONDS = "1 / seconds "
"""Prefix of metrics that are inverted times, so that more is better in every row."""

SUMMARY = (
    ("embed", "engine", "32×128", "fp32", "tokens/s"),
    ("embed", "engine", "32×128", "int8", "tokens/s"),
    ("embed", "server", "32 tokens", "int8", "requests/s"),
    ("embed", "server", "8–256 tokens, flood", "int8", "requests/s"),
    ("generate", "engine", "decode, 128 cached", "int8", "tokens/s"),
    ("generate", "engine", "prefill of 512", "int8", "tokens/s"),
    ("generate", "engine", "decode, 128 cached", "int4", "tokens/s"),
    ("generate", "server", "128 in, 64 out", "int8", "tokens/s"),
    ("generate", "server", "128 in, 64 out", "int8", "1 / seconds to first token, p50"),
    ("translate", "engine", "30 to 30, greedy", "int8", "tokens/s"),
    ("translate", "text", "en-pt, text to text", "int8", "sentences/s"),
    ("translate", "server", "30 to 30, greedy", "int8", "tokens/s"),
)
"""Task, level, work, precision and metric of each row of the README's table."""


def table(rows: Sequence[Row], fidelity: Fidelity) -> str:
    """Markdown table with one line per work and metric, for all its batch sizes or clients."""
    lines = [
        "| task | work | precision | at | Triune | × best peer | best peer | fidelity to fp32 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (task, level, work, precision, metric, protocol), measured in _by_work(rows).items():
        door = "" if protocol == NATIVE else f" by {protocol}"
        lines.append(
            f"| {task}, {level}{door} | {work} | {precision} "
            f"| {_sizes(level, measured)} "
            f"| {_measured(metric, [row['ours'] for row in measured])} "
            f"| {_ratios(measured)} | {_peers(measured)} | {fidelity.of(measured[0])} |"
        )
    return "\n".join(lines)


def summary(rows: Sequence[Row], fidelity: Fidelity) -> str:
    """Markdown table of the rows in ``SUMMARY``, each with the options that measure it again.

    Raises ``KeyError`` if the reports have no such row.
    """
    works = _by_work(rows)
    lines = [
        "| options | workload | Triune | × best peer | fidelity to fp32 |",
        "|---|---|---|---|---|",
    ]
    for key in SUMMARY:
        task, level, work, precision, metric = key
        measured = works[*key, NATIVE]
        options = f"--task {task}" + (f" --level {level}" if level != "engine" else "")
        lines.append(
            f"| `{options}` | {precision}, {work}, {_sizes(level, measured)} "
            f"| {_measured(metric, [row['ours'] for row in measured])} "
            f"| {_ratios(measured)} ({_peers(measured)}) | {fidelity.of(measured[0])} |"
        )
    return "\n".join(lines)


def machines(rows: Sequence[Row]) -> str:
    """The tasks that each machine measured, one sentence per machine.

    Names the precision where a task's precisions were measured on different machines.
    """
    by_task: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        by_task.setdefault((row["task"], row["level"]), set()).add(row["machine"])
    found: dict[str, dict[str, None]] = {}
    for row in rows:
        task, level = row["task"], row["level"]
        is_split = len(by_task[task, level]) > 1
        name = f"{task} ({level}, {row['precision']})" if is_split else f"{task} ({level})"
        found.setdefault(row["machine"], {})[name] = None
    return "\n".join(f"Measured on {name}: {', '.join(tasks)}." for name, tasks in found.items())


def committed(prefix: str = "compare") -> list[Row]:
    """The rows of the committed reports ``PREFIX-….json``, by task, level and precision."""
    files = sorted(RESULTS.glob(f"{prefix}-*.json"), key=lambda path: path.stem)
    return newest([json.loads(path.read_text("utf-8")) for path in files])


def newest(reports: Sequence[Mapping[str, Any]]) -> list[Row]:
    """The rows of all reports. Of rows measured twice, the one of the later report."""
    found: dict[tuple[str, ...], tuple[str, Row]] = {}
    for report in reports:
        machine = report["machine"]
        name = f"{machine['cores']} cores of {machine['processor']}"
        for row in report["rows"]:
            key = (*_work(row), str(_size(row)))
            if key not in found or report["started"] > found[key][0]:
                found[key] = report["started"], {**row, "machine": name}
    return [row for _, row in found.values()]


def _by_work(rows: Iterable[Row]) -> dict[tuple[str, ...], list[Row]]:
    """Rows with a ratio to a peer, grouped by what ``_work`` returns."""
    works: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        if row["ratio_to_best_peer"] is not None:
            works.setdefault(_work(row), []).append(row)
    return works


def _work(row: Row) -> tuple[str, ...]:
    """Task, level, work, precision, metric and protocol of our server.

    The work begins with the model if it is not the task's own.
    """
    work = f"{row['model']}: {row['work']}" if "model" in row else row["work"]
    keys = (row["task"], row["level"], work, row["precision"], row["metric"])
    # Reports of before have no other protocol.
    return (*map(str, keys), str(row.get("protocol", NATIVE)))


def _size(row: Row) -> Any:
    """The batch size or the number of clients."""
    return row.get("batch", row.get("clients"))


def _sizes(level: str, rows: Sequence[Row]) -> str:
    units = {"server": "clients", "text": "sentences"}
    return f"{_joined(map(_size, rows))} {units.get(level, 'together')}"


def _ratios(rows: Sequence[Row]) -> str:
    return _joined(format(row["ratio_to_best_peer"], ".2f") for row in rows)


def _peers(rows: Sequence[Row]) -> str:
    return ", ".join(dict.fromkeys(str(row["best_peer"]) for row in rows))


def _measured(metric: str, values: Sequence[float]) -> str:
    """Rates as they are; inverted times as milliseconds."""
    if not metric.startswith(INVERSE_SECONDS):
        return f"{_joined(map(_number, values))} {metric}"
    milliseconds = _joined(_number(1e3 / value) for value in values)
    return f"{milliseconds} ms {metric.removeprefix(INVERSE_SECONDS)}"


def _joined(values: Iterable[object]) -> str:
    return " · ".join(map(str, values))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _render_table() -> str:
    rows = committed()
    return f"{table(rows, Fidelity.committed(rows))}\n\n{machines(rows)}"


def _render_table_of(prefix: str) -> str:
    rows = committed(prefix)
    return table(rows, Fidelity.committed(rows))


def _render_summary() -> str:
    rows = committed()
    return summary(rows, Fidelity.committed(rows))


SECTIONS = (
    Section(document=ROOT / "docs" / "performance.md", name="comparisons", render=_render_table),
    *(
        Section(
            document=ROOT / "docs" / "performance.md",
            name=prefix,
            render=partial(_render_table_of, prefix),
        )
        for prefix in OTHER_MACHINES
    ),
    Section(document=ROOT / "README.md", name="summary", render=_render_summary),
)

if __name__ == "__main__":
    sys.exit(main("loadtest/results", SECTIONS))
