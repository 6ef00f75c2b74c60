"""Generates the table of faults in ``docs/reliability.md``.

    python -m pytest tests/faults
    python -m scripts.faults [--check]

The tests write one file per fault to ``build/faults`` (see ``tests/faults/record.py``). This script
copies them to ``docs/faults.json``, which is committed, and renders that file. A fault without a
new file keeps its row. Fuzzing and the soak take hours: their rows come from the committed reports
of ``python -m tests.fuzz --json``, ``tests.fuzz.slowest --json`` and ``tests.soak --json``.
``--check`` changes nothing and fails if the document differs from ``docs/faults.json``.
"""

import sys
from typing import Any

import msgspec

from scripts.generated_sections import ROOT, Section, main

COMMITTED = ROOT / "docs" / "faults.json"
ROWS = ROOT / "build" / "faults"
FUZZING = ROOT / "docs" / "fuzzing.json"
SLOWEST = ROOT / "docs" / "slowest.json"
SOAK = ROOT / "loadtest" / "results" / "soak.json"

Figure = int | float | str


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One fault: the required behaviour and the measured figures. ``order`` sorts the table."""

    order: int = 100
    fault: str
    must: str
    figures: dict[str, Figure]


def table(rows: list[Row]) -> str:
    """The Markdown table, one row per fault."""
    lines = ["| fault | what must happen | measured |", "|---|---|---|"]
    for row in rows:
        figures = ", ".join(f"{_words(name)} {_number(v)}" for name, v in row.figures.items())
        lines.append(f"| {row.fault} | {row.must} | {figures} |")
    return "\n".join(lines)


def committed() -> list[Row]:
    """The rows of ``docs/faults.json``; none if there is no such file."""
    if not COMMITTED.exists():
        return []
    return msgspec.json.decode(COMMITTED.read_bytes(), type=list[Row])


def measured() -> list[Row]:
    """The rows that the tests wrote to ``build/faults``."""
    return [
        msgspec.json.decode(file.read_bytes(), type=Row) for file in sorted(ROWS.glob("*.json"))
    ]


def long_runs() -> list[Row]:
    """The rows of fuzzing and of the soak, from their committed reports."""
    targets = msgspec.json.decode(FUZZING.read_bytes())["targets"].values()
    soak = msgspec.json.decode(SOAK.read_bytes())
    calls = sum(count for statuses in soak["requests"].values() for count in statuses.values())
    slope = soak["megabytes_per_hour"]
    return [
        Row(
            order=13,
            fault="malformed and huge messages, bad field values, broken bundles and checkpoints",
            must="a typed error that names the invalid part; no crash; every finding is fixed and "
            "replayed by the tests",
            figures={
                "fuzzed_targets": len(targets),
                "inputs": sum(target["inputs"] for target in targets),
                "found_and_fixed": sum(len(target["findings"]) for target in targets),
            },
        ),
        _slowest_row(),
        Row(
            order=16,
            fault="a long mixed load, with clients that crash, cancel, stall and send invalid "
            "requests",
            must="memory does not grow, except by what gRPC loses; no slot leaks; a planted leak "
            "is detected",
            figures={
                "minutes": round(soak["seconds"] / 60),
                "calls": calls,
                "killed_clients": soak["killed_clients"],
                "MB_per_hour": f"{slope['value']:.1f} ({slope['low']:.1f} to {slope['high']:.1f})",
                "MB_per_hour_that_gRPC_may_lose": soak["lost_megabytes_per_hour"],
                "open_slots_at_the_end": soak["open_slots_at_end"],
                **_process_figures(soak),
            },
        ),
    ]


def _slowest_row() -> Row:
    """The row of ``python -m tests.fuzz.slowest --json``."""
    found = msgspec.json.decode(SLOWEST.read_bytes())
    costs = {
        method: 1e6 * cost["loop_seconds"] / max(cost["num_bytes"], 1024)
        for method, cost in found["worst_of_loop"].items()
    }
    slowest = max(costs, key=lambda method: costs[method])
    return Row(
        order=7,
        fault="the slowest requests that a search finds, of every call, HTTP route and tensor",
        must=f"at most {found['max_loop_microseconds_per_byte']:g} µs of the event loop per byte; "
        "a planted slow path is found",
        figures={
            "calls_and_routes": len(found["worst"]),
            "inputs": found["inputs"],
            "most_microseconds_per_byte": f"{costs[slowest]:.1f} ({slowest})",
        },
    )


def _process_figures(soak: dict[str, Any]) -> dict[str, Figure]:
    """Threads, descriptors and latency; none in a report from before they were measured."""
    if "last_threads" not in soak:
        return {}
    return {
        "threads": f"{soak['first_threads']} to {soak['last_threads']}",
        "open_descriptors": f"{soak['first_descriptors']} to {soak['last_descriptors']}",
        "median_of_small_calls_milliseconds": soak["median_milliseconds"],
        "p99_of_small_calls_milliseconds": soak["p99_milliseconds"],
    }


def soak_section() -> str:
    """The plot of the soak, once a report has what it draws."""
    soak = msgspec.json.decode(SOAK.read_bytes())
    again = "`python -m tests.soak --minutes 60 --json loadtest/results/soak.json`"
    if not _process_figures(soak):
        return f"{again} measures a soak, and `python -m tests.soak.plot` draws it."
    minutes = round(soak["seconds"] / 60)
    return (
        f"![Memory, threads, descriptors and latency over {minutes} minutes](soak.png)\n\n"
        f"{minutes} minutes of load by every protocol. Small calls are those of one well-behaved "
        f"client beside it. Measured by {again}, drawn by `python -m tests.soak.plot "
        "loadtest/results/soak.json docs/soak`."
    )


def update() -> None:
    """Copies the measured rows to ``docs/faults.json``."""
    by_fault = {row.fault: row for row in [*committed(), *measured(), *long_runs()]}
    rows = sorted(by_fault.values(), key=lambda row: (row.order, row.fault))
    COMMITTED.write_bytes(msgspec.json.format(msgspec.json.encode(rows), indent=2) + b"\n")
    print(table(rows))


def _words(name: str) -> str:
    """``p99_milliseconds`` as words."""
    return name.replace("_", " ")


def _number(value: Figure) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if isinstance(value, int) or value >= 100 else f"{value:.3g}"


SECTIONS = (
    Section(
        document=ROOT / "docs" / "reliability.md",
        name="faults",
        render=lambda: table(committed()),
    ),
    Section(document=ROOT / "docs" / "reliability.md", name="soak", render=soak_section),
)

if __name__ == "__main__":
    sys.exit(main("docs/faults.json", SECTIONS, update))
