"""The log of a training as CSV, and its learning curve as an image."""

import csv
from pathlib import Path

from train.errors import TrainingError

LOG_FILE = "log.csv"
CURVE = "learning_curve"
COLUMNS = (
    "step",
    "loss",
    "validation_loss",
    "learning_rate",
    "gradient_norm",
    "target_tokens",
    "tokens_per_second",
    "seconds",
    "ponder_time",
)


class CsvLog:
    """``log.csv``: one row per logged step; the validation loss has its own column.

    ``ponder_time`` is 0 without adaptive computation time.

    Args:
        first_step: later rows, which a killed run wrote, are removed.
    """

    def __init__(self, folder: Path, first_step: int) -> None:
        self._path = folder / LOG_FILE
        rows = [row for row in read_log(folder) if int(row["step"]) <= first_step]
        with self._path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)

    def write(self, **values: float | str) -> None:
        """Appends a row."""
        row = {
            name: f"{value:.6g}" if isinstance(value, float) else str(value)
            for name, value in values.items()
        }
        with self._path.open("a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, COLUMNS, restval="").writerow(row)


def read_log(folder: Path) -> list[dict[str, str]]:
    """The rows of ``log.csv``; empty without one."""
    path = folder / LOG_FILE
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if None not in row.values()]


def draw_learning_curve(folder: Path, title: str) -> None:
    """Writes ``learning_curve.png`` and ``.svg`` from ``log.csv``.

    Raises:
        TrainingError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415  (extra "train")
    except ImportError as error:
        raise TrainingError("learning curves need matplotlib: pip install '.[train]'") from error
    rows = read_log(folder)
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for name, label in (("loss", "training"), ("validation_loss", "validation")):
        points = [(int(row["step"]), float(row[name])) for row in rows if row[name]]
        if points:
            axes.plot(
                *zip(*points, strict=True), label=label, marker="." if len(points) < 3 else ""
            )
    axes.set(xlabel="step", ylabel="loss (nats per target)", title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    for ending in ("png", "svg"):
        figure.savefig(folder / f"{CURVE}.{ending}", dpi=120)
