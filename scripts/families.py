"""Generates the table of model families in ``docs/families.md``.

    python -m pytest tests/families
    python -m scripts.families [--check]

The tests write one file per family to ``build/families`` (see ``tests/families/harness.py``). This
script copies them to ``docs/families.json``, which is committed, and renders that file. A family
without a new file keeps its row. ``--check`` changes nothing and fails if the document differs
from ``docs/families.json``.
"""

import sys

import msgspec

from scripts.generated_sections import ROOT, Section, main

COMMITTED = ROOT / "docs" / "families.json"
ROWS = ROOT / "build" / "families"


class Family(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parity of one family's fp32 graphs with ``transformers``, on a small random model.

    ``max_absolute_error`` is the largest error of a logit, or of a component of an encoder's
    output. ``tokens_tied`` counts greedy tokens that differ where the two best logits are closer
    than 1e-3. ``bytes_by_precision`` holds the sizes of the small model's graphs.
    """

    family: str
    kind: str
    operators: tuple[str, ...] = ()
    max_absolute_error: float
    tokens_compared: int = 0
    tokens_equal: int = 0
    tokens_tied: int = 0
    bytes_by_precision: dict[str, int] = {}


def _tokens(row: Family) -> str:
    if not row.tokens_compared:
        return "–"
    ties = f", {row.tokens_tied} tied" if row.tokens_tied else ""
    return f"{row.tokens_equal} of {row.tokens_compared}{ties}"


def table(families: list[Family]) -> str:
    """The Markdown table, one row per family."""
    lines = [
        "| family | kind | operators | max error | token match | size by precision |",
        "|---|---|---|---|---|---|",
    ]
    for row in families:
        operators = ", ".join(f"`{name}`" for name in row.operators)
        sizes = ", ".join(
            f"{precision} {size / 1000:.0f} kB"
            for precision, size in row.bytes_by_precision.items()
        )
        kind = row.kind.replace("_", "-")
        error = f"{row.max_absolute_error:.0e}"
        lines.append(
            f"| {row.family} | {kind} | {operators} | {error} | {_tokens(row)} | {sizes} |"
        )
    return "\n".join(lines)


def committed() -> list[Family]:
    """The rows of ``docs/families.json``; none if there is no such file."""
    if not COMMITTED.exists():
        return []
    return msgspec.json.decode(COMMITTED.read_bytes(), type=list[Family])


def measured() -> list[Family]:
    """The rows that the tests wrote to ``build/families``."""
    files = sorted(ROWS.glob("*.json"))
    return [msgspec.json.decode(file.read_bytes(), type=Family) for file in files]


def update() -> None:
    """Copies the measured rows to ``docs/families.json``."""
    rows = {row.family: row for row in [*committed(), *measured()]}
    families = sorted(rows.values(), key=lambda row: (row.kind, row.family.lower()))
    COMMITTED.write_bytes(msgspec.json.format(msgspec.json.encode(families), indent=2) + b"\n")


SECTIONS = (
    Section(
        document=ROOT / "docs" / "families.md",
        name="families",
        render=lambda: table(committed()),
    ),
)

if __name__ == "__main__":
    sys.exit(main("docs/families.json", SECTIONS, update))
