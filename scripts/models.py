"""Generates the table of the default models in ``docs/models.md``.

    make bundles
    python -m scripts.models [--check]

The figures come from the manifests and reports of ``bundles/``, which are copied to
``docs/models.json`` first.
"""

import sys
from pathlib import Path

import msgspec

from model.bundle import MANIFEST_FILE, PARITY_FILE, Manifest, Parity
from model.quality import QUALITY_FILE, Quality
from scripts.generated_sections import ROOT, Section, main, markdown_table

BUNDLES = ROOT / "bundles"
COMMITTED = ROOT / "docs" / "models.json"
HEAD = ("model", "calls", "layers × width", "parameters", "MB", "int8 beside fp32", "quality")


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One default model as ``make bundles`` exports it."""

    name: str
    tasks: tuple[str, ...]
    license: str
    num_layers: int
    hidden_size: int
    num_parameters: int
    num_bytes: int
    fidelity: str
    quality: str


def row_of(folder: Path) -> Row:
    """The row of one bundle."""
    manifest = msgspec.json.decode((folder / MANIFEST_FILE).read_bytes(), type=Manifest)
    parity = msgspec.json.decode((folder / PARITY_FILE).read_bytes(), type=Parity)
    size = manifest.dimensions
    return Row(
        name=manifest.name,
        tasks=tuple(task.value for task in manifest.tasks),
        license=manifest.license,
        num_layers=size.num_layers,
        hidden_size=size.hidden_size,
        num_parameters=size.num_parameters,
        num_bytes=sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
        fidelity=_fidelity(parity),
        quality=_quality(folder / QUALITY_FILE),
    )


def _fidelity(parity: Parity) -> str:
    found = parity.fidelity
    if found is None:
        return "–"
    if found.min_cosine is not None:
        return f"cosine ≥ {found.min_cosine:.4f}"
    if found.rms_logprob_difference is None:
        return f"top-1 {found.top1_agreement:.4f}"
    return f"top-1 {found.top1_agreement:.4f}, rms {found.rms_logprob_difference:.4f} nats"


def _quality(path: Path) -> str:
    if not path.is_file():
        return "–"
    measured = msgspec.json.decode(path.read_bytes(), type=Quality).measurements[0]
    values = (f"{name} {value:.3g}" for name, value in measured.metrics.items())
    return f"{', '.join(values)} ({measured.num_examples} held out)"


def committed() -> list[Row]:
    """The rows of ``docs/models.json``."""
    return msgspec.json.decode(COMMITTED.read_bytes(), type=list[Row])


def update() -> None:
    """Copies the figures of all bundles."""
    rows = [row_of(path.parent) for path in sorted(BUNDLES.glob(f"*/1/{MANIFEST_FILE}"))]
    COMMITTED.write_bytes(msgspec.json.format(msgspec.json.encode(rows), indent=2) + b"\n")


def table() -> str:
    """One line per model."""
    lines = [[*HEAD, "licence"]]
    for row in committed():
        megabytes = row.num_bytes / 1e6
        lines.append(
            [
                f"`{row.name}`",
                ", ".join(row.tasks),
                f"{row.num_layers} × {row.hidden_size}",
                f"{row.num_parameters / 1e6:.1f} M",
                f"{megabytes:.0f}" if megabytes >= 1 else f"{megabytes:.1f}",
                row.fidelity,
                row.quality,
                row.license,
            ]
        )
    return markdown_table(lines)


SECTIONS = (Section(document=ROOT / "docs" / "models.md", name="models", render=table),)

if __name__ == "__main__":
    sys.exit(main("docs/models.json", SECTIONS, update))
