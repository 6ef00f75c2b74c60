"""Tokenizes texts for static embedding models, which have no token around or between texts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress

from model.bundle import StaticTokens
from server.text.windows import LengthLimit, LongInput, TokenizedText, Window


@dataclass(frozen=True, slots=True)
class StaticReader:
    """Adapts the texts of one call to a static embedding model."""

    spec: StaticTokens
    limit: LengthLimit

    @property
    def max_characters(self) -> int | None:
        """The characters to which texts are cut before they are tokenized; ``None``: all."""
        number = self.spec.characters_per_token
        is_cut = number is not None and self.limit.long_input == LongInput.TRUNCATE_RIGHT
        return self.limit.max_tokens * number if is_cut and number is not None else None

    def read(self, text: TokenizedText, num_cut: int = 0) -> TokenizedText:
        """Leaves out the ignored token. A text without other tokens becomes the blank token.

        ``num_cut``: the tokens of the characters that :attr:`max_characters` cut.
        """
        ignored = self.spec.ignored
        windows, offsets, word_ids = text.windows, text.offsets, text.word_ids
        if any(not window.token_ids or ignored in window.token_ids for window in windows):
            if offsets:  # then there is one window
                kept = [True] * windows[0].first_token
                kept += [id_ != ignored for id_ in windows[0].token_ids]
                offsets, word_ids = tuple(compress(offsets, kept)), tuple(compress(word_ids, kept))
            windows = self._without_ignored(windows)
        elif not num_cut:
            return text
        return replace(
            text,
            windows=windows,
            offsets=offsets,
            word_ids=word_ids,
            num_truncated_tokens=text.num_truncated_tokens + num_cut,
        )

    def _without_ignored(self, windows: Sequence[Window]) -> tuple[Window, ...]:
        """The windows that have other tokens, without the ignored one."""
        rows = [
            tuple(id_ for id_ in window.token_ids if id_ != self.spec.ignored) for window in windows
        ]
        found = [
            replace(window, token_ids=ids, segment_ids=(0,) * len(ids), num_text_tokens=len(ids))
            for window, ids in zip(windows, rows, strict=True)
            if ids
        ]
        blank = replace(
            windows[0], token_ids=(self.spec.blank,), segment_ids=(0,), num_text_tokens=0
        )
        return tuple(found or [blank])
