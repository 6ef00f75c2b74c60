"""Metrics that compare outputs with references."""

import re
from collections import Counter
from collections.abc import Hashable, Sequence

from export.errors import UnsupportedError


def translation_metrics(outputs: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """``bleu`` and ``chrf`` in percent, by sacrebleu, and the share of equal outputs.

    BLEU: Papineni et al. 2002, tokenization 13a; chrF: Popović 2015.

    Raises:
        UnsupportedError: sacrebleu is not installed.
    """
    try:
        from sacrebleu import corpus_bleu, corpus_chrf  # noqa: PLC0415  (extra "train")
    except ImportError as error:
        raise UnsupportedError(
            "the quality of a translation is measured by sacrebleu: pip install '.[train]', "
            "or --evaluate off"
        ) from error
    return {
        "bleu": float(corpus_bleu(list(outputs), [list(references)]).score),
        "chrf": float(corpus_chrf(list(outputs), [list(references)]).score),
        "exact_match": exact_match(outputs, references),
    }


def exact_match(outputs: Sequence[Hashable], references: Sequence[Hashable]) -> float:
    """The share of outputs that equal their reference."""
    pairs = list(zip(outputs, references, strict=True))
    return sum(output == reference for output, reference in pairs) / len(pairs)


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


def character_error_rate(outputs: Sequence[str], references: Sequence[str]) -> float:
    """The edit distances of all outputs, divided by the number of characters of the references."""
    errors = sum(map(edit_distance, outputs, references))
    return errors / max(1, sum(map(len, references)))


def macro_f1(outputs: Sequence[str], references: Sequence[str]) -> float:
    """The mean F1 over the labels that occur in ``references``."""
    scores = []
    pairs = list(zip(outputs, references, strict=True))
    for label in sorted(set(references)):
        both = sum(output == reference == label for output, reference in pairs)
        either = outputs.count(label) + references.count(label)
        scores.append(2 * both / either)
    return sum(scores) / len(scores)


def entity_f1(
    outputs: Sequence[set[tuple[int, int, str]]], references: Sequence[set[tuple[int, int, str]]]
) -> float:
    """The F1 of entities with the same span and label (micro average)."""
    both = sum(len(a & b) for a, b in zip(outputs, references, strict=True))
    total = sum(map(len, outputs)) + sum(map(len, references))
    return 2 * both / total if total else 1.0


def token_f1(output: str, reference: str) -> float:
    """The F1 of an answer's words (Rajpurkar et al. 2016)."""
    words = [Counter(re.findall(r"\w+", text.lower())) for text in (output, reference)]
    both = (words[0] & words[1]).total()
    total = words[0].total() + words[1].total()
    return 2 * both / total if total else float(output == reference)
