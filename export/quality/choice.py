"""Chooses the held-out set that an export measures, and formats the result in one line."""

from pathlib import Path

from export.checkpoint import Checkpoint, HeldOutSet
from export.errors import SourceError, UnsupportedError
from export.importers.native import examples_task, read_held_out
from export.quality.measure import MEASURES
from export.shortlists import OFF
from model.quality import Quality

AUTO = "auto"


def choose_held_out(checkpoint: Checkpoint, choice: str) -> HeldOutSet | None:
    """The checkpoint's own set (``auto``), none (``off``), or the examples of a file.

    Raises:
        SourceError: the file is missing or damaged.
        UnsupportedError: no quality is measured for the model's task.
    """
    if choice in (AUTO, OFF):
        return checkpoint.held_out if choice == AUTO else None
    kind, has_image = checkpoint.config.kind, checkpoint.image is not None
    task = examples_task(checkpoint.tasks, kind, has_image=has_image)
    if task not in MEASURES:
        raise UnsupportedError(
            f"--evaluate: no quality is measured for {task}; supported: {', '.join(MEASURES)}"
        )
    if checkpoint.span_tagging is not None:
        raise UnsupportedError(
            "--evaluate: no quality is measured for models that find the request's labels"
        )
    try:
        return read_held_out(Path(choice), task, Path(choice).name)
    except SourceError as error:
        raise SourceError(f"--evaluate: {error}") from error


def summary(quality: Quality | None) -> str:
    """The metrics of the bundle and of fp32; empty if there are none."""
    if quality is None:
        return ""
    lines = []
    for measured in quality.measurements:
        values = ", ".join(
            f"{name} {value:.4g} (fp32 {measured.fp32_metrics[name]:.4g})"
            for name, value in measured.metrics.items()
        )
        decoding = f", {measured.decoding}" if measured.decoding else ""
        lines.append(
            f"; {measured.task} on {measured.dataset} ({measured.num_examples}{decoding}): {values}"
        )
    return "".join(lines)
