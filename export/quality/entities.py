"""Decodes the logits of a token classifier to entities, to measure quality."""

from collections.abc import Sequence

from tokenizers import Encoding

from export.runtime import Floats


def decode_entities(
    labels: Sequence[str], text: str, encoding: Encoding, logits: Floats
) -> set[tuple[int, int, str]]:
    """Merges neighbouring tokens with the same label to entities; ``B-`` begins a new one.

    ``logits [length, labels]``; an entity is ``(start, end, label)``, in characters of ``text``.
    """
    spans: list[tuple[int, int, str]] = []
    is_open = False
    for index, (start, end) in enumerate(encoding.offsets):
        if encoding.special_tokens_mask[index]:
            continue
        label = labels[int(logits[index].argmax())]
        mark, _, name = label.rpartition("-")
        first = end - len(text[start:end].lstrip())
        if label == "O":
            is_open = False
        elif is_open and mark != "B" and spans[-1][2] == name:
            spans[-1] = (spans[-1][0], end, name)
        else:
            spans.append((first, end, name))
            is_open = True
    return set(spans)
