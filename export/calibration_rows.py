"""Token ids on which exports measure activations."""

from collections.abc import Iterator

from export.calibration_texts import calibration_texts
from export.checkpoint import Checkpoint
from export.fidelity.subject import Subject

MAX_ROW_TOKENS = 96
MAX_UNKNOWN_SHARE = 0.1  # of a row's tokens: text of another alphabet measures nothing


def calibration_rows(checkpoint: Checkpoint, max_tokens: int | None = None) -> list[list[int]]:
    """Rows of at most ``MAX_ROW_TOKENS`` ids, of texts that no bundle is measured on.

    None if the model cannot read these texts.

    Args:
        max_tokens: of all rows together; None for all texts.
    """
    subject, unknown = Subject.of(checkpoint), checkpoint.special_tokens.unk
    rows = []
    for text in calibration_texts(subject.source_language):
        row = subject.encode(text)[:MAX_ROW_TOKENS]
        if row and sum(id_ == unknown for id_ in row) <= MAX_UNKNOWN_SHARE * len(row):
            rows.append(row)
    return list(_first(rows, max_tokens))


def _first(rows: list[list[int]], max_tokens: int | None) -> Iterator[list[int]]:
    """The first rows with ``max_tokens`` in all, at least one."""
    num_tokens = 0
    for row in rows:
        if max_tokens is not None and 0 < num_tokens > max_tokens - len(row):
            return
        num_tokens += len(row)
        yield row
