"""The report: a JSON file that is complete after every row, and text for people."""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from loadtest import machine
from loadtest.compare.fidelity import describe


class Report:
    """Rows in one JSON file.

    Args:
        path: rewritten after every change, so that an interrupted run loses nothing.
        about: fields of the report besides its rows.
    """

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self._path = path
        self._document: dict[str, Any] = {
            **about,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine.machine(),
            "versions": machine.versions(),
            "rows": [],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        self._write()

    @property
    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._document["rows"]
        return rows

    def set(self, name: str, value: object) -> None:
        """Sets a field of the report."""
        self._document[name] = value
        self._write()

    def add(self, row: dict[str, Any]) -> None:
        self.replace_from(len(self.rows), [row])

    def replace_from(self, first: int, rows: list[dict[str, Any]]) -> None:
        """Replaces the rows from index ``first`` on."""
        self.rows[first:] = rows
        self._write()

    def left_out(self, workload: str) -> None:
        """Records that there was no time for ``workload``."""
        self._document.setdefault("left_out", []).append(workload)
        self._write()

    def _write(self) -> None:
        text = json.dumps(self._document, indent=2, ensure_ascii=False) + "\n"
        partial = self._path.with_name(self._path.name + ".partial")
        partial.write_text(text, encoding="utf-8")
        partial.replace(self._path)


def format_row(row: dict[str, Any]) -> str:
    """One line for the log."""
    size = f"batch {row['batch']}" if "batch" in row else f"{row['clients']} clients"
    peers = ", ".join(f"{name} {_short(value)}" for name, value in row["peers"].items())
    ratio, floor = row["ratio_to_best_peer"], row["part_of_floor"]
    return (
        f"{row['task']} {row['precision']} {row['work']}, {size}{_door(row)}: "
        f"ours {_short(row['ours'])} {row['metric']}; {peers or 'no peer'}; "
        f"× best {'–' if ratio is None else f'{ratio:.2f}'}, "
        f"of roofline {'–' if floor is None else f'{floor:.0%}'}"
    )


def _door(row: dict[str, Any]) -> str:
    return f", by {row['protocols']['ours']}" if "protocols" in row else ""


_FILE_COLUMNS = 160
COLUMNS = (
    *("work", "size", "candidate", "protocol", "rate"),
    *("ours ÷ theirs", "of roofline", "fidelity to fp32"),
)


def print_table(rows: list[dict[str, Any]]) -> None:
    """Prints a line for each candidate of each row, then once each reason why one did not run."""
    table = Table(*COLUMNS)
    for row in rows:
        for line in candidate_lines(row):
            table.add_row(*line)
        table.add_section()
    Console(width=None if sys.stdout.isatty() else _FILE_COLUMNS).print(table)
    for reason in dict.fromkeys(reason for row in rows for reason in _reasons(row)):
        print(reason)


def candidate_lines(row: dict[str, Any]) -> list[tuple[str, ...]]:
    """A line of the table for us, and one for each peer that ran, with ``COLUMNS``."""
    work = f"{row['task']} {row['precision']}, {row['work']}"
    size = str(row.get("batch", row.get("clients")))
    ratios, floor = row.get("ratios", {}), row["floor"]
    lines: list[tuple[str, ...]] = []
    for name, rate in {"ours": row["ours"], **row["peers"]}.items():
        if isinstance(rate, str):
            continue
        fidelity = row.get("fidelity", {}).get(name, {})
        lines.append(
            (
                "" if lines else work,
                "" if lines else size,
                name,
                row.get("protocols", {}).get(name, ""),
                f"{_short(rate)} {row['metric']}",
                f"{ratios[name]:.2f}" if name in ratios else _to_native(row),
                "–" if floor is None else f"{rate / floor:.1%}",
                describe(fidelity),
            )
        )
    return lines


def _to_native(row: dict[str, Any]) -> str:
    """What another protocol of our server reaches of our own protocol's rate."""
    ratio = row.get("ratio_to_native")
    return "" if ratio is None else f"{ratio:.2f} × triune.v1"


def _reasons(row: dict[str, Any]) -> list[str]:
    named = {"ours": row["ours"], **row["peers"]}
    return [
        f"{row['task']} {row['precision']} {name}: {value}"
        for name, value in named.items()
        if isinstance(value, str)
    ]


def _short(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"
