"""A bundle's tokenizer, and text as it grows token by token."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers.decoders import DecodeStream

from model.bundle import BundleError

_REPLACEMENT = "\ufffd"  # what an incomplete UTF-8 sequence decodes to


class Tokenizer:
    """``tokenizer.json`` of a bundle. Thread-safe; releases the GIL while it works.

    Raises:
        BundleError: the file is not a tokenizer.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._tokenizer = HuggingFaceTokenizer.from_file(str(path))
        except Exception as error:
            # The library raises plain Exception.
            label = f"{path.parent.parent.name}/{path.parent.name}"
            raise BundleError(f"{label}: {path.name}: {error}") from error
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    def encode(self, texts: Sequence[str], *, special_tokens: bool = True) -> list[tuple[int, ...]]:
        """Token ids of each text, with the special tokens that the model expects around it."""
        batch = self._tokenizer.encode_batch_fast(texts, add_special_tokens=special_tokens)
        return [tuple(encoding.ids) for encoding in batch]

    def encode_after(self, context: str, text: str) -> tuple[tuple[int, ...], int]:
        """Token ids of ``context + text``, and how many of them are before ``text``.

        A token that spans the border belongs to ``text``.
        """
        encoding = self._tokenizer.encode(context + text)
        inside = (
            index
            for index, ((_, end), special) in enumerate(
                zip(encoding.offsets, encoding.special_tokens_mask, strict=True)
            )
            if not special and end > len(context)
        )
        return tuple(encoding.ids), next(inside, len(encoding.ids))

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """The vocabulary's own spelling of each id."""
        return [self._tokenizer.id_to_token(id_) or "" for id_ in ids]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ``ids`` without special tokens and without an unfinished last character."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text.rstrip(_REPLACEMENT)

    def stream(self) -> "TextStream":
        """For one sequence, from its first generated token."""
        return TextStream(self, self._tokenizer)


class TextStream:
    """Token ids in, text out. The pieces, joined, are ``Tokenizer.decode`` of all ids."""

    def __init__(self, tokenizer: Tokenizer, library: HuggingFaceTokenizer) -> None:
        self._tokenizer = tokenizer
        self._library = library
        self._stream = DecodeStream(skip_special_tokens=True)
        self._ids: list[int] = []
        self._num_characters = 0

    def push(self, id_: int) -> str:
        """The text that became certain; empty while a character is incomplete."""
        self._ids.append(id_)
        piece = self._stream.step(self._library, id_) or ""
        self._num_characters += len(piece)
        return piece

    def finish(self) -> str:
        """What the pieces so far still lack."""
        return self._tokenizer.decode(self._ids)[self._num_characters :]
