"""Phoneme errors of spelling to sound."""

from collections.abc import Sequence


def phonemes(text: str) -> list[str]:
    """The phonemes in ``AH T EH N``."""
    return text.split()


def edit_distance(output: Sequence[str], target: Sequence[str]) -> int:
    """Insertions, deletions and substitutions from one to the other (Levenshtein 1966)."""
    row = list(range(len(target) + 1))
    for index, symbol in enumerate(output, 1):
        diagonal, row[0] = row[0], index
        for column, expected in enumerate(target, 1):
            diagonal, row[column] = (
                row[column],
                min(row[column] + 1, row[column - 1] + 1, diagonal + (symbol != expected)),
            )
    return row[-1]
