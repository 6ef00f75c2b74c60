"""``python -m tests.soak.plot REPORT.json docs/soak``: draws a report as ``.png`` and ``.svg``."""

import json
import sys
from pathlib import Path
from typing import Any

# The panels: a label, and the columns of ``samples`` with their names.
PANELS: tuple[tuple[str, tuple[tuple[int, str], ...]], ...] = (
    ("resident memory (MB)", ((2, ""),)),
    ("threads, descriptors", ((4, "threads"), (5, "open descriptors"))),
    ("small call (ms)", ((6, "median"), (7, "99th percentile"))),
)


def draw(report: dict[str, Any], path: Path) -> None:
    """Writes ``path`` with the endings ``.png`` and ``.svg``: the samples over time.

    The latency is that of a well-behaved client beside the load; each point is one sample's
    interval. The warm-up is grey.
    """
    import matplotlib as mpl  # noqa: PLC0415  (the soak itself needs no plots)
    from matplotlib.figure import Figure  # noqa: PLC0415

    mpl.rcParams["svg.hashsalt"] = "soak"  # the same report gives the same file
    rows = report["samples"]
    minutes = [row[0] / 60 for row in rows]
    figure = Figure(figsize=(8, 7), layout="constrained")
    for axes, (label, columns) in zip(
        figure.subplots(len(PANELS), 1, sharex=True), PANELS, strict=True
    ):
        for column, name in columns:
            axes.plot(minutes, [row[column] for row in rows], label=name, linewidth=0.9)
        axes.axvspan(0, report["warm_up_seconds"] / 60, color="0.92")
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        if len(columns) > 1:
            axes.legend(loc="upper right")
    axes.set_xlabel("minutes")
    axes.set_xlim(0, minutes[-1])
    figure.savefig(path.with_suffix(".png"), dpi=120, metadata={"Software": None})
    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text("utf-8")), Path(sys.argv[2]))
