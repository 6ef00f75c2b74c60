"""What encoders whose decoder reads the text again are compared with: BART, mBART, PLBART, T5."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from export.sources import load_checkpoint
from model.bundle import Task
from tests.export.importers.support import pooled, randomise, save
from tests.families.harness import imported

NLI = {0: "contradiction", 1: "neutral", 2: "entailment"}


def unprepared(_folder: Path) -> None:
    """The folder as it was saved."""


def check_classifies(
    model: Any,
    folder: Path,
    suffix: tuple[int, ...],
    pad: int,
    prepare: Callable[[Path], None] = unprepared,
) -> None:
    """Compares the labels of texts of different lengths, which end with ``suffix``."""
    randomise(model).eval()
    save(model, folder)
    prepare(folder)
    checkpoint = load_checkpoint(str(folder))
    assert (checkpoint.tasks, checkpoint.labels) == ((Task.CLASSIFY,), tuple(NLI.values()))
    lengths = torch.tensor([9, 6, 3])
    ids = torch.randint(5, 60, (3, 9), generator=torch.Generator().manual_seed(0))
    for row, length in zip(ids, lengths, strict=True):
        row[length - len(suffix) : length] = torch.tensor(suffix)
        row[length:] = pad
    with torch.no_grad():
        mask = (torch.arange(9) < lengths[:, None]).long()
        expected = model(ids, attention_mask=mask).logits
    torch.testing.assert_close(pooled(checkpoint, ids, lengths), expected, rtol=0, atol=1e-4)


def check_answers(model: Any) -> None:
    """Compares the logits of the answer's start and end."""
    model.eval()
    with imported(model) as checkpoint:
        assert checkpoint.tasks == (Task.ANSWER,)
        ids = torch.randint(5, 60, (2, 9), generator=torch.Generator().manual_seed(0))
        found = model(ids)
        expected = torch.stack([found.start_logits, found.end_logits], -1)
        actual = pooled(checkpoint, ids, torch.tensor([9, 9]))
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)
