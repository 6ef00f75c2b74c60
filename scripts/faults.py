"""Writes the README's table of faults from what their tests measured.

    python -m pytest tests/faults
    python -m scripts.faults [--check]

The tests leave one file a fault in ``build/faults`` (see ``tests/faults/record.py``). They are
taken over into ``docs/faults.json``, which is committed, and from there into the README; a fault
that was not tested meanwhile keeps its row. Fuzzing and the soak take hours: their rows are of what
``python -m tests.fuzz --json`` and ``python -m tests.soak --json`` last wrote. ``--check`` changes
nothing and fails if the README does not say what ``docs/faults.json`` says.
"""

import sys

import msgspec

from scripts.parts import ROOT, main, replaced

COMMITTED = ROOT / "docs" / "faults.json"
ROWS = ROOT / "build" / "faults"
FUZZING = ROOT / "docs" / "fuzzing.json"
SOAK = ROOT / "loadtest" / "results" / "soak.json"

Figure = int | float | str


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fault, what must happen, and what was measured, by name. ``order``: in the table."""

    order: int = 100
    fault: str
    must: str
    figures: dict[str, Figure]


def table(rows: list[Row]) -> str:
    """Its Markdown."""
    lines = ["| fault | what must happen | measured |", "|---|---|---|"]
    for row in rows:
        figures = ", ".join(f"{_words(name)} {_number(v)}" for name, v in row.figures.items())
        lines.append(f"| {row.fault} | {row.must} | {figures} |")
    return "\n".join(lines)


def rendered(readme: str, rows: list[Row]) -> str:
    """``readme`` with the table of ``rows``."""
    return replaced(readme, "faults", table(rows))


def committed() -> list[Row]:
    """The rows of ``docs/faults.json``; none if there is no such file."""
    if not COMMITTED.exists():
        return []
    return msgspec.json.decode(COMMITTED.read_bytes(), type=list[Row])


def measured() -> list[Row]:
    """The rows that tests left in ``build/faults``."""
    return [
        msgspec.json.decode(file.read_bytes(), type=Row) for file in sorted(ROWS.glob("*.json"))
    ]


def long_runs() -> list[Row]:
    """The rows of fuzzing and of the soak."""
    targets = msgspec.json.decode(FUZZING.read_bytes())["targets"].values()
    soak = msgspec.json.decode(SOAK.read_bytes())
    calls = sum(count for statuses in soak["requests"].values() for count in statuses.values())
    slope = soak["megabytes_per_hour"]
    return [
        Row(
            order=13,
            fault="malformed and huge messages, bad field values, broken bundles and checkpoints",
            must="an error of the closed set that names what is wrong; no crash; what was found is "
            "mended and replayed by the tests",
            figures={
                "fuzzed_targets": len(targets),
                "inputs": sum(target["inputs"] for target in targets),
                "found_and_mended": sum(len(target["findings"]) for target in targets),
            },
        ),
        Row(
            order=16,
            fault="mixed load for long, with clients that crash, cancel, stall and send nonsense",
            must="memory does not grow, no slot stays open; a planted leak is caught",
            figures={
                "minutes": round(soak["seconds"] / 60),
                "calls": calls,
                "killed_clients": soak["killed_clients"],
                "MB_per_hour": f"{slope['value']:.1f} ({slope['low']:.1f} to {slope['high']:.1f})",
                "open_slots_at_the_end": soak["open_slots_at_end"],
            },
        ),
    ]


def update() -> None:
    """Takes up what was measured."""
    by_fault = {row.fault: row for row in [*committed(), *measured(), *long_runs()]}
    rows = sorted(by_fault.values(), key=lambda row: (row.order, row.fault))
    COMMITTED.write_bytes(msgspec.json.format(msgspec.json.encode(rows), indent=2) + b"\n")
    print(table(rows))


def _words(name: str) -> str:
    """``p99_milliseconds`` as a reader writes it."""
    return name.replace("_", " ")


def _number(value: Figure) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if isinstance(value, int) or value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(
        main("faults", "docs/faults.json", lambda readme: rendered(readme, committed()), update)
    )
