"""Writes the README's table of families from what their tests measured.

    python -m pytest tests/families
    python -m scripts.families [--check]

The tests leave one file a family in ``build/families`` (see ``tests/families/harness.py``). They
are taken over into ``docs/families.json``, which is committed, and from there into the README; a
family that was not tested meanwhile keeps its row. ``--check`` changes nothing and fails if the
README does not say what ``docs/families.json`` says.
"""

import sys

import msgspec

from scripts.parts import ROOT, main, replaced

COMMITTED = ROOT / "docs" / "families.json"
ROWS = ROOT / "build" / "families"


class Family(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was measured of a family: its fp32 graphs against ``transformers``.

    ``max_absolute_error`` is of a logit, or of a component of an encoder's output.
    ``tokens_tied`` were chosen otherwise, between two logits closer than 1e-3.
    ``bytes_by_precision`` are those of the graphs of the small model that was tested.
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
    """Its Markdown."""
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


def rendered(readme: str, families: list[Family]) -> str:
    """``readme`` with the table of ``families``."""
    return replaced(readme, "families", table(families))


def committed() -> list[Family]:
    """The rows of ``docs/families.json``; none if there is no such file."""
    if not COMMITTED.exists():
        return []
    return msgspec.json.decode(COMMITTED.read_bytes(), type=list[Family])


def measured() -> list[Family]:
    """The rows that tests left in ``build/families``."""
    files = sorted(ROWS.glob("*.json"))
    return [msgspec.json.decode(file.read_bytes(), type=Family) for file in files]


def update() -> None:
    """Takes up what was measured."""
    rows = {row.family: row for row in [*committed(), *measured()]}
    families = sorted(rows.values(), key=lambda row: (row.kind, row.family.lower()))
    COMMITTED.write_bytes(msgspec.json.format(msgspec.json.encode(families), indent=2) + b"\n")


if __name__ == "__main__":
    sys.exit(
        main("families", "docs/families.json", lambda readme: rendered(readme, committed()), update)
    )
