"""Streaming detokenization: token by token, to text that is final."""

from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from server.text.characters import REPLACEMENT, num_incomplete_tokens
from server.text.token_bytes import bytes_of, without_incomplete_character

# A character needs far fewer pushes. Then invalid bytes are returned as they are, because every
# push without text makes the next one slower.
_MAX_PUSHES_WITHOUT_TEXT = 64


class StreamingDetokenizer:
    """Detokenizes a stream. The joined pieces do not depend on how tokens were grouped.

    They equal ``Tokenizer.decode`` of all ids unless some bytes are invalid UTF-8.

    ``special`` has the ids of special tokens, which have no text. ``previous`` are the tokens
    before the first one, whose text is not returned; if they end inside a character, the first text
    is the whole character. ``changes_text`` says whether later tokens may change earlier text, as
    with byte fallback.
    """

    def __init__(
        self,
        library: Tokenizer,
        special: frozenset[int],
        previous: Sequence[int] = (),
        *,
        changes_text: bool = True,
    ) -> None:
        self._library, self._special = library, special
        self._stream = DecodeStream(skip_special_tokens=True)
        self._previous = list(previous)
        self._previous_text: str = library.decode(self._previous).rstrip(REPLACEMENT)
        self._repeated = ""  # the start of the next text, which precedes the first token
        if self._previous and not self._stream.step(library, self._previous):
            self._repeated = self._previous_text
        self._pending: list[int] = []  # tokens whose text has not been returned yet
        self._num_pushes = 0  # since text was returned
        self._changes_text = changes_text
        self._is_empty = True

    def push(self, id_: int) -> str:
        """Adds a token. Returns the text that is final; empty while a character is incomplete."""
        return self._push([id_])

    def push_all(self, ids: Sequence[int]) -> str:
        """Like :meth:`push` of each token, but cheaper; some text may wait for the next tokens."""
        if self._changes_text or len(ids) < 2:
            return "".join(map(self.push, ids))
        *earlier, last = ids  # if the last ends inside a character, earlier text is still returned
        return self._push(earlier) + self.push(last)

    def _push(self, ids: list[int]) -> str:
        self._is_empty = False
        ids = [id_ for id_ in ids if id_ not in self._special]
        if not ids:
            return ""
        self._pending += ids
        self._num_pushes += 1
        try:
            piece = self._stream.step(self._library, ids) or ""
        except Exception:
            # Byte fallback (Llama 2, Gemma) changes returned characters if invalid bytes follow.
            return self._restart(ids)
        if piece:
            piece = piece.removeprefix(self._repeated)
            self._set_pending([])
        elif self._num_pushes > _MAX_PUSHES_WITHOUT_TEXT:
            piece = self._restart(ids)
        return piece

    def _restart(self, last: list[int]) -> str:
        """Returns the pending tokens' text as it is, but for an incomplete character at the end.

        The next text follows the tokens ``last``.
        """
        num_incomplete = num_incomplete_tokens(bytes_of(self._library, self._pending))
        done = self._pending[: len(self._pending) - num_incomplete]
        incomplete = self._pending[len(done) :]
        piece = self._text_of(done)
        self._stream = DecodeStream(skip_special_tokens=True)
        has_text = self._stream.step(self._library, incomplete or last)
        repeats = not (has_text or incomplete)
        self._set_pending(incomplete, repeated=self._library.decode(last) if repeats else "")
        return piece

    def _set_pending(self, ids: list[int], repeated: str = "") -> None:
        """Text has been returned, up to that of ``ids``."""
        self._previous, self._previous_text = [], ""
        self._pending, self._repeated = ids, repeated
        self._num_pushes = 0

    def _text_of(self, ids: list[int], *, keep_incomplete: bool = True) -> str:
        """The text of ``ids``, which follow all text that has been returned.

        ``keep_incomplete``: whether to keep an incomplete character at the end.
        """
        before, all_ids = self._previous_text, [*self._previous, *ids]
        text: str = self._library.decode(all_ids)
        if not text.startswith(before):
            before, all_ids, text = "", ids, self._library.decode(ids)
        if not keep_incomplete:
            text = without_incomplete_character(self._library, all_ids, text)
        return text.removeprefix(before)

    def finish(self, ids: Sequence[int] = ()) -> str:
        """Adds the last tokens, more cheaply than :meth:`push`. Returns the rest of the text."""
        if self._is_empty:
            whole: str = self._library.decode([*self._previous, *ids])
            if REPLACEMENT not in whole and whole.startswith(self._previous_text):
                return whole[len(self._previous_text) :]
        return self.push_all(ids) + self._text_of(self._pending, keep_incomplete=False)
