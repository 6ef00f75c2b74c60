"""Token ids of queries and documents for late-interaction models, which have a vector per token.

Late interaction: Khattab and Zaharia 2020 (ColBERT, section 3.2). ``export`` and ``server`` share
these rules, which are those of ColBERT's and PyLate's tokenizers: a text is cut first, then the
marker is inserted after its first token, then masks pad a query.
"""

from collections.abc import Sequence

from model.bundle import MultiVector


def query_ids(ids: Sequence[int], spec: MultiVector) -> tuple[list[int], int]:
    """The ids of a query, and the number of its tokens that are attended to.

    Args:
        ids: the text's tokens with special tokens, neither cut nor marked.

    Returns:
        At most ``spec.query_length`` ids; exactly as many with a filler. Fillers that are not
        attended to come last, so one length describes them.
    """
    marked = _marked(ids, spec.query_marker, spec.query_length, spec.has_end_token)
    if spec.filler is None:
        return marked, len(marked)
    filled = marked + [spec.filler] * (spec.query_length - len(marked))
    return filled, len(filled) if spec.attends_to_filler else len(marked)


def document_ids(ids: Sequence[int], spec: MultiVector) -> list[int]:
    """The ids of a document, at most ``spec.document_length``.

    ``ids``: the text's tokens with special tokens, neither cut nor marked.
    """
    return _marked(ids, spec.document_marker, spec.document_length, spec.has_end_token)


def kept_tokens(ids: Sequence[int], spec: MultiVector) -> list[int]:
    """The indices of a document's tokens that keep a vector: those that are not skipped."""
    skipped = frozenset(spec.skipped)
    return [index for index, token in enumerate(ids) if token not in skipped]


def _marked(
    ids: Sequence[int], marker: int | None, max_tokens: int, has_end_token: bool
) -> list[int]:
    """``ids`` with the marker inserted second, cut to ``max_tokens`` in total."""
    limit = max_tokens - (marker is not None)
    cut = list(ids[:limit])
    if has_end_token and len(ids) > limit and cut:
        cut[-1] = ids[-1]
    return cut if marker is None else [*cut[:1], marker, *cut[1:]]
