"""Labels of taggers that correct texts: the tags of GECToR (Omelianchuk et al. 2020)."""

from collections.abc import Sequence

from export.errors import UnsupportedError
from model.edits import Edit, EditKind

KEEP_TAG = "$KEEP"
_WHOLE = {
    KEEP_TAG: Edit(kind=EditKind.KEEP),
    "$DELETE": Edit(kind=EditKind.DELETE),
    "$CASE_CAPITAL": Edit(kind=EditKind.CAPITALIZE),
    "$CASE_LOWER": Edit(kind=EditKind.LOWERCASE),
    "$CASE_UPPER": Edit(kind=EditKind.UPPERCASE),
    "$TRANSFORM_CASE_CAPITAL": Edit(kind=EditKind.CAPITALIZE),
    "$TRANSFORM_CASE_LOWER": Edit(kind=EditKind.LOWERCASE),
    "$TRANSFORM_CASE_UPPER": Edit(kind=EditKind.UPPERCASE),
    "$TRANSFORM_AGREEMENT_PLURAL": Edit(kind=EditKind.PLURAL),
    "$TRANSFORM_AGREEMENT_SINGULAR": Edit(kind=EditKind.SINGULAR),
    "$TRANSFORM_SPLIT_HYPHEN": Edit(kind=EditKind.SPLIT),
    "$MERGE_SPACE": Edit(kind=EditKind.MERGE),
    "$MERGE_HYPHEN": Edit(kind=EditKind.MERGE, text="-"),
    # Labels that fill up GECToR's vocabulary, without an edit.
    "@@UNKNOWN@@": Edit(kind=EditKind.KEEP),
    "@@PADDING@@": Edit(kind=EditKind.KEEP),
}
_WITH_TEXT = {"$REPLACE_": EditKind.REPLACE, "$APPEND_": EditKind.APPEND}


def are_edit_tags(labels: Sequence[str]) -> bool:
    """Whether the labels are edits of words rather than names of entities."""
    return KEEP_TAG in labels


def read_edit_tags(labels: Sequence[str], origin: str) -> tuple[Edit, ...]:
    """The edit of each label.

    Raises:
        UnsupportedError: lists the labels with an unknown meaning, such as verb forms, which need a
            dictionary.
    """
    found = [_edit(label) for label in labels]
    unknown = [label for label, edit in zip(labels, found, strict=True) if edit is None]
    if unknown:
        known = ", ".join([*_WHOLE, *(f"{prefix}TEXT" for prefix in _WITH_TEXT)])
        raise UnsupportedError(
            f"{origin}: {len(unknown)} edit tags are not supported: {', '.join(unknown[:10])}; "
            f"supported: {known}"
        )
    return tuple(edit for edit in found if edit is not None)


def _edit(label: str) -> Edit | None:
    if label in _WHOLE:
        return _WHOLE[label]
    for prefix, kind in _WITH_TEXT.items():
        text = label.removeprefix(prefix)
        if text != label and text.strip():
            return Edit(kind=kind, text=text)
    return None
