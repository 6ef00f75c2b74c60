"""The report as it grows: JSON that is whole after every row, and a line for people."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from loadtest import machine


class Report:
    """Rows in one JSON file.

    Args:
        path: written anew after every change, so that a run that is ended early loses nothing.
        about: what else a reader must know.
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

    def note(self, name: str, value: object) -> None:
        """Something about the run as a whole."""
        self._document[name] = value
        self._write()

    def add(self, row: dict[str, Any]) -> None:
        self.put(len(self.rows), [row])

    def put(self, first: int, rows: list[dict[str, Any]]) -> None:
        """The rows from number ``first`` on are these: what was known of them before goes."""
        self.rows[first:] = rows
        self._write()

    def left_out(self, workload: str) -> None:
        """There was no time for ``workload``."""
        self._document.setdefault("left_out", []).append(workload)
        self._write()

    def _write(self) -> None:
        text = json.dumps(self._document, indent=2, ensure_ascii=False) + "\n"
        partial = self._path.with_name(self._path.name + ".partial")
        partial.write_text(text, encoding="utf-8")
        partial.replace(self._path)


def line(row: dict[str, Any]) -> str:
    """A row while the run goes on."""
    size = f"batch {row['batch']}" if "batch" in row else f"{row['clients']} clients"
    peers = ", ".join(f"{name} {_short(value)}" for name, value in row["peers"].items())
    ratio, floor = row["ratio_to_best_peer"], row["part_of_floor"]
    return (
        f"{row['task']} {row['precision']} {row['work']}, {size}: "
        f"ours {_short(row['ours'])} {row['metric']}; {peers or 'no peer'}; "
        f"× best {'–' if ratio is None else f'{ratio:.2f}'}, "
        f"of the floor {'–' if floor is None else f'{floor:.0%}'}"
    )


def print_table(rows: list[dict[str, Any]]) -> None:
    """All rows; the reasons of those that did not run follow, each once."""
    table = Table("task", "work", "precision", "size", "metric", "ours", "peers", "× best", "floor")
    reasons: dict[str, None] = {}
    for row in rows:
        ratio, floor = row["ratio_to_best_peer"], row["part_of_floor"]
        peers = {n: v for n, v in row["peers"].items() if not isinstance(v, str)}
        reasons |= {
            f"{row['task']} {row['precision']} {name}: {value}": None
            for name, value in row["peers"].items()
            if isinstance(value, str)
        }
        table.add_row(
            row["task"],
            row["work"],
            row["precision"],
            str(row.get("batch", row.get("clients"))),
            row["metric"],
            _short(row["ours"]),
            ", ".join(f"{name} {_short(value)}" for name, value in peers.items()),
            "–" if ratio is None else f"{ratio:.2f}",
            "–" if floor is None else f"{floor:.0%}",
        )
    Console().print(table)
    for reason in reasons:
        print(reason)


def _short(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"
