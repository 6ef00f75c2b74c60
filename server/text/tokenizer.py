"""A bundle's tokenizer, and text as it grows token by token."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers.decoders import DecodeStream

from model.bundle import BundleError
from server.text.windows import LengthLimit, TokenizedText, TooLongError, tokenize_windows

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

    def tokenize_windows(
        self, texts: Sequence[str], pairs: Sequence[str] | None, limit: LengthLimit, *, spans: bool
    ) -> list[TokenizedText]:
        """Each text, or each with its pair, as an encoder reads it.

        Args:
            texts: alone, or the first of each pair.
            pairs: the second, as many.
            limit: of a window.
            spans: whether the readings' spans and words are needed; else they are empty.

        Raises:
            TooLongError: the limit says so; names the text.
        """
        encode = self._tokenizer.encode_batch if spans else self._tokenizer.encode_batch_fast
        inputs = texts if pairs is None else list(zip(texts, pairs, strict=True))
        readings = []
        for index, whole in enumerate(encode(inputs)):
            pair = None if pairs is None else pairs[index]
            try:
                readings.append(
                    tokenize_windows(self._tokenizer, texts[index], pair, whole, limit, spans=spans)
                )
            except TooLongError as error:
                error.index = index
                raise
        return readings

    def word_starts(self, text: str, reading: TokenizedText) -> list[bool]:
        """Whether each token of ``reading`` begins a word of ``text``.

        Where the vocabulary marks what continues a word, the tokenizer knows the words; else
        they are what stands between spaces.
        """
        if getattr(self._tokenizer.model, "continuing_subword_prefix", None):
            words = reading.words
            return [
                word is None or index == 0 or word != words[index - 1]
                for index, word in enumerate(words)
            ]
        starts = []
        for start, _ in reading.spans:
            around = text[max(0, start - 1) : start + 1]
            starts.append(start == 0 or any(character.isspace() for character in around))
        return starts

    def id_of(self, word: str) -> int | None:
        """The one token that ``word`` is, as the vocabulary spells it or as text."""
        id_: int | None = self._tokenizer.token_to_id(word)
        if id_ is not None:
            return id_
        ids = self._tokenizer.encode(word, add_special_tokens=False).ids
        return int(ids[0]) if len(ids) == 1 else None

    def text_of(self, id_: int) -> str:
        """One token as text, a special one too."""
        text: str = self._tokenizer.decode([id_], skip_special_tokens=False)
        return text

    def offsets(self, text: str) -> list[tuple[int, int] | None]:
        """The characters of ``text`` that each of its tokens stands for; None: a special one."""
        encoding = self._tokenizer.encode(text)
        return [
            None if special or start >= end else _trimmed(text, start, end)
            for (start, end), special in zip(
                encoding.offsets, encoding.special_tokens_mask, strict=True
            )
        ]

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


def _trimmed(text: str, start: int, end: int) -> tuple[int, int] | None:
    """Without the space that many vocabularies put before a word."""
    piece = text[start:end]
    start += len(piece) - len(piece.lstrip())
    return (start, end) if start < end else None
