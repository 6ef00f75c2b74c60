"""Edits of a text that a model chooses for each word (Omelianchuk et al. 2020, GECToR)."""

from enum import StrEnum
from typing import Annotated

import msgspec

from model.graph_spec import Record

MAX_EDITS = 65_536
MAX_EDIT_CHARACTERS = 256


class EditKind(StrEnum):
    """What happens to a word. ``text`` means that of the :class:`Edit`."""

    KEEP = "keep"
    DELETE = "delete"
    REPLACE = "replace"  # by text
    APPEND = "append"  # text after the word
    CAPITALIZE = "capitalize"  # the first letter; lower-cases the others
    LOWERCASE = "lowercase"
    UPPERCASE = "uppercase"
    PLURAL = "plural"  # adds an s
    SINGULAR = "singular"  # drops the last letter
    SPLIT = "split"  # a space for each hyphen
    MERGE = "merge"  # text instead of the space before the next word


class Edit(Record, frozen=True, kw_only=True):
    """The edit of one label. ``text``: for ``REPLACE``, ``APPEND`` and ``MERGE``."""

    kind: EditKind
    text: Annotated[str, msgspec.Meta(max_length=MAX_EDIT_CHARACTERS)] = ""

    def __post_init__(self) -> None:
        if not self.text and self.kind in (EditKind.REPLACE, EditKind.APPEND):
            raise ValueError(f"an edit of kind {self.kind.value} needs a text")


class EditVocabulary(Record, frozen=True, kw_only=True):
    """The edits of a model that corrects texts.

    Attributes:
        edits: one edit per label.
        min_score: the lowest probability at which an edit of the model is applied.
    """

    edits: Annotated[tuple[Edit, ...], msgspec.Meta(min_length=1, max_length=MAX_EDITS)]
    min_score: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
