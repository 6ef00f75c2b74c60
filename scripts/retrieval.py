"""Writes the table of ways to search in ``docs/retrieval.md``.

python -m tests.benchmarks.retrieval
python -m scripts.retrieval [--check]
"""

import json
import sys
from typing import Any

from scripts.generated_sections import ROOT, Section, main, markdown_table

REPORT = ROOT / "docs" / "retrieval.json"
PAGE = ROOT / "docs" / "retrieval.md"
METRICS = ("recall_at_1", "recall_at_10", "mrr_at_10")


def table() -> str:
    """Quality, size and speed of every way to search."""
    report: dict[str, Any] = json.loads(REPORT.read_text("utf-8"))
    head = ["search by", "recall@1", "recall@10", "MRR@10", "bytes", "documents/s"]
    lines = [head, *map(_line, report["systems"])]
    caption = f"{report['num_queries']} searches, {report['num_documents']:,} documents:"
    return f"{caption}\n\n{markdown_table(lines)}"


def _line(row: dict[str, Any]) -> list[str]:
    names = " + ".join(_code(part) for part in row["system"].split(" + "))
    cells = [_pair(row["fp32"][metric], row.get("int8", {}).get(metric)) for metric in METRICS]
    size = str(row.get("bytes_per_document", "–"))
    speed = [row.get(f"{precision}_documents_per_second") for precision in ("fp32", "int8")]
    return [names, *cells, size, "–" if None in speed else " / ".join(f"{x:.0f}" for x in speed)]


def _code(name: str) -> str:
    return name if name == "BM25" else ", then ".join(f"`{x}`" for x in name.split(", then "))


def _pair(fp32: float, int8: float | None) -> str:
    return f"{fp32:.3f}" if int8 is None else f"{fp32:.3f} / {int8:.3f}"


SECTIONS = (Section(document=PAGE, name="retrieval", render=table),)

if __name__ == "__main__":
    sys.exit(main("docs/retrieval.json", SECTIONS))
