"""The state of an unfinished training, from which a killed training continues bit for bit."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from train.errors import ResumeError, TrainingError

STATE_FOLDER = "state"
STATE_FILE = "state.pt"
Weights = dict[str, Tensor]


@dataclass(kw_only=True)
class Progress:
    """The progress of a training.

    Attributes:
        epoch, batch: the next batch.
        best_loss, best_step: loss and step of the best validation.
        validations: step and loss of each validation.
        seconds, cpu_seconds: of all runs until the last checkpoint; the processor time is that of
            the first process, with its threads.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    best_loss: float = float("inf")
    best_step: int = 0
    num_bad: int = 0
    num_tokens: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    validations: list[tuple[int, float]] = field(default_factory=list)


class StateFolder:
    """``state/`` of a training: ``state.pt`` and the weights of the last checkpoints.

    Every file is written beside its final name and then renamed, so that a kill leaves no partial
    files.

    Args:
        fingerprint: identifies the recipe and everything else that must not change.
    """

    def __init__(self, out: Path, fingerprint: dict[str, Any]) -> None:
        self.path = out / STATE_FOLDER
        self._fingerprint = fingerprint

    @property
    def exists(self) -> bool:
        return (self.path / STATE_FILE).is_file()

    def save(self, progress: Progress, state: dict[str, Any]) -> None:
        """Replaces the state of the last checkpoint. Raises ``TrainingError``: the disk is full."""
        self.path.mkdir(parents=True, exist_ok=True)
        record = {"fingerprint": self._fingerprint, "progress": vars(progress), **state}
        _save(record, self.path / STATE_FILE)

    def load(self) -> tuple[Progress, dict[str, Any]]:
        """Loads the last checkpoint.

        Raises:
            ResumeError: the state is damaged, or belongs to another recipe.
        """
        path = self.path / STATE_FILE
        try:
            record: dict[str, Any] = torch.load(path, weights_only=True)
        except Exception as error:
            raise ResumeError(f"{path}: {error}") from error
        identity = record["fingerprint"]
        if "random_states" not in record or identity.keys() != self._fingerprint.keys():
            raise ResumeError(f"{path}: of an earlier version; start again with --restart")
        for name, value in self._fingerprint.items():
            if identity[name] != value:
                raise ResumeError(
                    f"{path}: the {name} changed since this training began; restore it, or start "
                    "again with --restart"
                )
        progress = Progress(**record["progress"])
        progress.validations = [(step, loss) for step, loss in progress.validations]
        return progress, record

    def save_weights(self, step: int, weights: Weights) -> None:
        """Adds the checkpoint of ``step``. Raises ``TrainingError``: the disk is full."""
        self.path.mkdir(parents=True, exist_ok=True)
        _save(weights, self.path / f"weights-{step}.pt")

    def remove_weights(self, keep: set[int]) -> None:
        """Removes all checkpoints except those of the steps ``keep``."""
        for path in self.path.glob("weights-*.pt"):
            if int(path.stem.partition("-")[2]) not in keep:
                path.unlink()

    def weights(self, step: int) -> Weights:
        """The weights of the checkpoint of ``step``."""
        loaded: Weights = torch.load(self.path / f"weights-{step}.pt", weights_only=True)
        return loaded


def mean_weights(parts: list[Weights]) -> Weights:
    """The mean of the weights of several checkpoints (Vaswani et al. 2017, section 6.1)."""
    return {
        name: torch.stack([part[name].double() for part in parts]).mean(0).to(weight.dtype)
        for name, weight in parts[0].items()
    }


def _save(value: object, path: Path) -> None:
    """Writes a file whole or not at all. Raises ``TrainingError`` if the disk is full."""
    partial = path.with_suffix(".partial")
    try:
        with partial.open("wb") as file:
            torch.save(value, file)
            file.flush()
            os.fsync(file.fileno())
    except (OSError, RuntimeError) as error:
        # torch.save replaces the error of a write by its own.
        cause = error if isinstance(error, OSError) else error.__context__
        if not isinstance(cause, OSError):
            raise
        partial.unlink(missing_ok=True)
        raise TrainingError(f"cannot write {path}: {cause.strerror}") from error
    partial.replace(path)
