"""Adapts tokenized queries and documents to multi-vector (late-interaction) models.

:mod:`model.late_interaction` has the rules for token ids.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from model.bundle import MultiVector
from model.late_interaction import document_ids, kept_tokens, query_ids
from server.text.windows import TokenizedText, TooLongError, Window, WindowBudget


@dataclass(frozen=True, slots=True)
class LateInteraction:
    """Adapts the texts of one call, which are queries if ``is_query``, else documents.

    The lengths in ``spec`` must fit the server's limits.
    """

    spec: MultiVector
    is_query: bool

    @property
    def max_tokens(self) -> int:
        """Maximum tokens of a text, including its marker and special tokens."""
        return self.spec.query_length if self.is_query else self.spec.document_length

    @property
    def num_markers(self) -> int:
        """Number of marker tokens per text: 1 or 0."""
        return int(self._marker is not None)

    def kept(self, ids: Sequence[int]) -> Sequence[int]:
        """The indices of a window's tokens that have a vector, from its token ids."""
        return range(len(ids)) if self.is_query else kept_tokens(ids, self.spec)

    @property
    def _marker(self) -> int | None:
        return self.spec.query_marker if self.is_query else self.spec.document_marker

    def read_all(self, texts: Sequence[TokenizedText], budget: WindowBudget) -> list[TokenizedText]:
        """Calls :meth:`read` for each text; the ``index`` of an error says which text it is."""
        read = []
        for index, text in enumerate(texts):
            try:
                read.append(self.read(text, budget))
            except TooLongError as error:
                error.index = index
                raise
        return read

    def read(self, text: TokenizedText, budget: WindowBudget) -> TokenizedText:
        """Adds a marker to each window of ``text`` and, for a query, filler tokens.

        Args:
            text: the text. Each window has at most :attr:`max_tokens` together with a marker; a
                text with offsets has one window. A text without tokens is returned unchanged.
            budget: the request's budget, from which the added tokens are taken.

        Raises:
            TooLongError: the added tokens exceed the budget.
        """
        if not text.windows[0].token_ids:
            return text
        budget.spend(0, sum(self._num_added(window) for window in text.windows))
        windows = tuple(self._marked(window) for window in text.windows)
        offsets, word_ids = text.offsets, text.word_ids
        if offsets and self._splits(text.windows[0]):
            at = text.windows[0].first_token + 1
            offsets = (*offsets[:at], (0, 0), *offsets[at:])
            word_ids = (*word_ids[:at], None, *word_ids[at:])
        return replace(text, windows=windows, offsets=offsets, word_ids=word_ids)

    def _splits(self, window: Window) -> bool:
        """Whether the marker follows the text's first token instead of a special token."""
        return self._marker is not None and window.text_start == 0 and window.num_text_tokens > 0

    def _num_added(self, window: Window) -> int:
        num_marked = len(window.token_ids) + self.num_markers
        is_filled = self.is_query and self.spec.filler is not None
        num_tokens = max(num_marked, self.spec.query_length) if is_filled else num_marked
        return num_tokens - len(window.token_ids)

    def _marked(self, window: Window) -> Window:
        if self.is_query:
            ids, num_attended = query_ids(window.token_ids, self.spec)
        else:
            ids = document_ids(window.token_ids, self.spec)
            num_attended = len(ids)
        segments = window.segment_ids[:1] * (len(ids) - len(window.segment_ids))
        splits, has_text = self._splits(window), window.num_text_tokens > 0
        shifts = self._marker is not None and has_text and not splits
        return replace(
            window,
            token_ids=tuple(ids),
            segment_ids=(*window.segment_ids, *segments),
            text_start=window.text_start + shifts,
            num_text_tokens=window.num_text_tokens + splits,
            num_attended=num_attended,
        )
