"""Writes the tables of the models that write texts in ``docs/training.md``.

python -m tests.benchmarks.translators
python -m tests.benchmarks.summaries
python -m scripts.translators [--check]
"""

import json
import sys
from typing import Any

from scripts.generated_sections import ROOT, Section, main, markdown_table

REPORT = ROOT / "docs" / "translators.json"
SUMMARIES = ROOT / "docs" / "summaries.json"
PAGE = ROOT / "docs" / "training.md"


def sets() -> list[dict[str, Any]]:
    """The measured sets of the committed report."""
    found: list[dict[str, Any]] = json.loads(REPORT.read_text("utf-8"))["sets"]
    return found


def summary() -> str:
    """BLEU / chrF of every system on every set."""
    measured = sets()
    systems = [row["system"] for row in measured[0]["systems"]]
    lines = [["model, texts", *systems]]
    for one in measured:
        cells = [_figures(row) for row in one["systems"]]
        lines.append([f"`{one['model']}`, {one['num_texts']} {one['set']}", *cells])
    return markdown_table(lines)


def by_length() -> str:
    """BLEU / chrF of the first set by the words of the source."""
    first = sets()[0]
    groups = first["systems"][0]["by_length"]
    lines = [["words of the source", *(f"{one['first']}–{one['last']}" for one in groups)]]
    lines.append(["texts", *(str(one["num_texts"]) for one in groups)])
    for row in first["systems"]:
        lines.append([row["system"], *map(_figures, row["by_length"])])
    return markdown_table(lines)


def summaries() -> str:
    """BLEU / chrF of every system that summarises."""
    systems = json.loads(SUMMARIES.read_text("utf-8"))["systems"]
    return markdown_table([[row["system"] for row in systems], list(map(_figures, systems))])


def _figures(row: dict[str, Any]) -> str:
    return f"{row['bleu']:.1f} / {row['chrf']:.1f}"


SECTIONS = (
    Section(document=PAGE, name="summaries", render=summaries),
    Section(document=PAGE, name="translators", render=summary),
    Section(document=PAGE, name="translators-length", render=by_length),
)

if __name__ == "__main__":
    sys.exit(main("docs/translators.json", SECTIONS))
