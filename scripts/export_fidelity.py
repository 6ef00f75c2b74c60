"""Generates the tables of fidelity in ``docs/exporting.md``.

    python -m scripts.export_fidelity [--check]

The figures come from the ``parity.json`` of the default models' exports, in
``loadtest/results/parity-NAME-PRECISION.json``, and from the report of
``tests.benchmarks.quantizers``. Without options, the files of the bundles in ``bundles/`` are
copied there first.
"""

import re
import shutil
import sys
from collections.abc import Mapping

import msgspec

from model.bundle import MANIFEST_FILE, PARITY_FILE, Fidelity, Parity
from scripts.generated_sections import ROOT, Section, main, markdown_table

RESULTS = ROOT / "loadtest" / "results"
BUNDLES = ROOT / "bundles"
NAMES = ("smollm2", "en-pt", "pt-en", "minilm")
COLUMNS = {
    "top-1 agreement": "top1_agreement",
    "KL divergence": "kl_divergence",
    "rms of log-probabilities": "rms_logprob_difference",
    "identical outputs": "identical_outputs",
    "chrF": "chrf",
    "lowest cosine": "min_cosine",
    "mean cosine": "mean_cosine",
    "same neighbour": "retrieval_agreement",
}


def table(reports: Mapping[str, Fidelity]) -> str:
    """The Markdown table, one row per name of ``reports``."""
    titles = ["model", "compared", *COLUMNS, "worst matrix"]
    lines = [f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}"]
    for name, fidelity in reports.items():
        tokens = f"{fidelity.num_tokens:,} tokens" if fidelity.num_tokens else ""
        cells = [name, tokens or f"{fidelity.num_texts} texts"]
        cells += [_cell(getattr(fidelity, field)) for field in COLUMNS.values()]
        worst = fidelity.worst_matrices[:1]
        cells += [f"`{one.name}` {100 * one.relative_error:.1f} %" for one in worst] or ["–"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.1f}" if value > 1 else f"{value:.4f}".rstrip("0").rstrip(".")


def committed() -> dict[str, Fidelity]:
    """The fidelity of each committed report, by model and precision."""
    found = {}
    for name in NAMES:
        for path in sorted(RESULTS.glob(f"parity-{name}-*.json"), reverse=True):
            parity = msgspec.json.decode(path.read_bytes(), type=Parity)
            if parity.fidelity is not None:
                precision = re.sub(rf"^parity-{name}-", "", path.stem)
                found[f"{name}, {precision}"] = parity.fidelity
    return found


def quantizers() -> str:
    """The Markdown table of our precisions and llama.cpp's, the largest first."""
    report = msgspec.json.decode((RESULTS / "quantizers.json").read_bytes())
    titles = ["engine", "precision", "MB", "top-1 agreement", "rms of log-probabilities"]
    lines = [[*titles, *(f"tokens/s, {batch} together" for batch in report["rows"][0]["rates"])]]
    for row in sorted(report["rows"], key=lambda row: -row["megabytes"]):
        figures = f"{row['megabytes']:.1f}", f"{row['top_1']:.3f}", f"{row['rms_nats']:.3f}"
        rates = [f"{rate:,.0f}" for rate in row["rates"].values()]
        lines.append([row["engine"], row["precision"], *figures, *rates])
    return markdown_table(lines)


def update() -> None:
    """Copies the reports of the default models' bundles."""
    for name in NAMES:
        folder = BUNDLES / name / "1"
        if (folder / MANIFEST_FILE).exists():
            precision = msgspec.json.decode((folder / MANIFEST_FILE).read_bytes())["precision"]
            shutil.copyfile(folder / PARITY_FILE, RESULTS / f"parity-{name}-{precision}.json")


SECTIONS = (
    Section(
        document=ROOT / "docs" / "exporting.md",
        name="fidelity",
        render=lambda: table(committed()),
    ),
    Section(document=ROOT / "docs" / "exporting.md", name="quantizers", render=quantizers),
)

if __name__ == "__main__":
    sys.exit(main("loadtest/results", SECTIONS, update))
