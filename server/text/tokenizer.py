"""A bundle's tokenizer."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Encoding
from tokenizers import Tokenizer as HuggingFaceTokenizer

from model.bundle import BundleError, PairTemplate, StaticTokens
from server.text.characters import (
    MAX_CHARACTER_BYTES,
    REPLACEMENT,
    continues_character,
    is_text,
)
from server.text.detokenizer import StreamingDetokenizer
from server.text.static_tokens import StaticReader
from server.text.templated_pair import TemplatedPair
from server.text.token_bytes import bytes_of, without_incomplete_character
from server.text.tokenizer_file import load_tokenizer
from server.text.windows import (
    LengthLimit,
    TokenizedText,
    TooLongError,
    WindowBudget,
    tokenize_windows,
)


class Tokenizer:
    """The ``tokenizer.json`` of a bundle. Thread-safe; releases the GIL while it works.

    Raises:
        BundleError: the file is not a tokenizer.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._tokenizer = load_tokenizer(path)
        except Exception as error:
            # The library raises plain Exception.
            label = f"{path.parent.parent.name}/{path.parent.name}"
            raise BundleError(f"{label}: {path.name}: {error}") from error
        added = self._tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(id_ for id_, token in added.items() if token.special)
        """Ids of tokens that texts do not have, such as those of the start and the end."""
        self._changes_text = "ByteFallback" in str(self._tokenizer.decoder)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    @property
    def library(self) -> HuggingFaceTokenizer:
        """The library's tokenizer, which callers must not change."""
        return self._tokenizer

    def token_beyond(self, vocabulary_size: int) -> str | None:
        """A token whose id is not below ``vocabulary_size``; ``None`` if there is none."""
        num_tokens = self._tokenizer.get_vocab_size()
        if vocabulary_size <= 2 * num_tokens:
            # Unlike get_vocab, this lets other threads run.
            ids = range(vocabulary_size)
            if num_tokens == sum(self._tokenizer.id_to_token(id_) is not None for id_ in ids):
                return None
        vocabulary = self._tokenizer.get_vocab().items()
        return next((token for token, id_ in vocabulary if id_ >= vocabulary_size), None)

    def encode(
        self, texts: Sequence[str], *, special_tokens: bool = True, max_tokens: int | None = None
    ) -> list[tuple[int, ...]]:
        """Token ids of each text, with the special tokens that the model expects around it.

        Raises:
            TooLongError: a text has more than ``max_tokens``; ``index`` says which.
        """
        batch = self._tokenizer.encode_batch_fast(texts, add_special_tokens=special_tokens)
        for index, encoding in enumerate(batch):
            _check_length(encoding, max_tokens, index)
        return [tuple(encoding.ids) for encoding in batch]

    def encode_words(self, rows: Sequence[Sequence[str]]) -> list[Encoding]:
        """Tokenizes texts that are split into words: ``word_ids`` are the words' indices."""
        encodings: list[Encoding] = self._tokenizer.encode_batch(rows, is_pretokenized=True)
        return encodings

    def encode_after(
        self, context: str, text: str, max_tokens: int | None = None
    ) -> tuple[tuple[int, ...], int]:
        """Token ids of ``context + text``, and the number of those that precede ``text``.

        A token that spans the boundary belongs to ``text``.

        Raises:
            TooLongError: there are more than ``max_tokens``.
        """
        encoding = self._encode_one(context + text)
        _check_length(encoding, max_tokens)
        inside = (
            index
            for index, ((_, end), special) in enumerate(
                zip(encoding.offsets, encoding.special_tokens_mask, strict=True)
            )
            if not special and end > len(context)
        )
        return tuple(encoding.ids), next(inside, len(encoding.ids))

    def tokenize_windows(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None,
        limit: LengthLimit,
        budget: WindowBudget,
        *,
        with_offsets: bool,
        template: PairTemplate | None = None,
        static_tokens: StaticTokens | None = None,
    ) -> list[TokenizedText]:
        """Tokenizes texts, or pairs of texts, for an encoder.

        Args:
            texts: single texts, or the first text of each pair.
            pairs: the second text of each pair; as many as ``texts``.
            limit: the length limit, and how longer texts are handled.
            budget: the windows and tokens that the texts may use; reduced by what they use.
            with_offsets: whether to return offsets and word ids; otherwise they are empty.
            template: the text around each pair.
            static_tokens: of a static embedding model; only for single texts.

        Raises:
            TooLongError: a text exceeds the limit or the budget; ``index`` says which.
        """
        if static_tokens is not None:
            reader = StaticReader(static_tokens, limit)
            return self._tokenize_static(texts, reader, budget, with_offsets=with_offsets)
        inputs = texts if pairs is None else list(zip(texts, pairs, strict=True))
        templated: list[TemplatedPair | None] = [None] * len(inputs)
        if pairs is not None and template is not None:
            found = [TemplatedPair.of(template, *pair) for pair in zip(texts, pairs, strict=True)]
            inputs, templated = [pair.text for pair in found], list(found)
        needs_offsets = with_offsets or any(templated)
        encode = (
            self._tokenizer.encode_batch if needs_offsets else self._tokenizer.encode_batch_fast
        )
        wholes = encode(inputs, add_special_tokens=not any(templated))
        tokenized = []
        for index, (whole, pair) in enumerate(zip(wholes, templated, strict=True)):
            try:
                text = tokenize_windows(
                    whole,
                    limit,
                    budget,
                    is_pair=pairs is not None,
                    with_offsets=with_offsets,
                    templated=pair,
                )
            except TooLongError as error:
                error.index = index
                raise
            tokenized.append(text)
        return tokenized

    def _tokenize_static(
        self,
        texts: Sequence[str],
        reader: StaticReader,
        budget: WindowBudget,
        *,
        with_offsets: bool,
    ) -> list[TokenizedText]:
        """Tokenizes texts for a static embedding model, and counts the tokens of what is cut."""
        length = reader.max_characters
        tokenized = self.tokenize_windows(
            [text[:length] for text in texts], None, reader.limit, budget, with_offsets=with_offsets
        )
        rests = [text[len(text) if length is None else length :] for text in texts]
        num_cut = [0] * len(texts)
        if any(rests):
            num_cut = list(map(len, self.encode(rests, special_tokens=False)))
        return [reader.read(text, count) for text, count in zip(tokenized, num_cut, strict=True)]

    def word_starts(self, text: str, tokenized: TokenizedText) -> list[bool]:
        """Whether each token of ``tokenized`` begins a word of ``text``.

        If the vocabulary marks tokens that continue a word (WordPiece), the tokenizer defines the
        words. Otherwise white space separates them.
        """
        if getattr(self._tokenizer.model, "continuing_subword_prefix", None):
            words = tokenized.word_ids
            return [
                word is None or index == 0 or word != words[index - 1]
                for index, word in enumerate(words)
            ]
        starts = []
        for start, _ in tokenized.offsets:
            around = text[max(0, start - 1) : start + 1]
            starts.append(start == 0 or any(character.isspace() for character in around))
        return starts

    def id_of(self, word: str) -> int | None:
        """The token id of ``word``, spelled as in the vocabulary or as text.

        ``None`` if ``word`` is not a single token.
        """
        id_: int | None = self._tokenizer.token_to_id(word)
        if id_ is not None:
            return id_
        ids = self._tokenizer.encode(word, add_special_tokens=False).ids
        return int(ids[0]) if len(ids) == 1 else None

    def text_of(self, id_: int) -> str:
        """The text of one token, special tokens included."""
        text: str = self._tokenizer.decode([id_], skip_special_tokens=False)
        return text

    def offsets(self, text: str, *, special_tokens: bool = True) -> list[tuple[int, int] | None]:
        """Start and end of each token in ``text``, in characters; ``None`` for special tokens."""
        encoding = self._encode_one(text, special_tokens=special_tokens)
        return [
            None if special or start >= end else _trimmed(text, start, end)
            for (start, end), special in zip(
                encoding.offsets, encoding.special_tokens_mask, strict=True
            )
        ]

    def _encode_one(self, text: str, *, special_tokens: bool = True) -> Encoding:
        """Tokenizes one text. Unlike the library's ``encode``, this lets other threads run."""
        (encoding,) = self._tokenizer.encode_batch([text], add_special_tokens=special_tokens)
        return encoding

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """The spelling of each id in the vocabulary."""
        return [self._tokenizer.id_to_token(id_) or "" for id_ in ids]

    def token_bytes(self, ids: Sequence[int]) -> list[bytes]:
        """The bytes that each id adds after other text; for special tokens, their names."""
        return bytes_of(self._tokenizer, ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids`` without special tokens and without an incomplete last character."""
        # Unlike decode, this lets other threads run.
        (text,) = self._tokenizer.decode_batch([list(ids)], skip_special_tokens=True)
        if not text.endswith(REPLACEMENT):
            return str(text)
        with_text = [id_ for id_ in ids if id_ not in self.special_ids]
        return without_incomplete_character(self._tokenizer, with_text, text)

    def last_with_text(self, ids: Sequence[int]) -> tuple[int, ...]:
        """The last of ``ids`` that is no special token; none if there is none.

        If they end inside a character, its first tokens too.
        """
        found: list[int] = []
        for id_ in reversed(ids):
            if id_ in self.special_ids:
                continue
            found.insert(0, id_)
            if len(found) == 1 and REPLACEMENT not in self._tokenizer.decode(found):
                return (id_,)
            spelled = b"".join(self.token_bytes(found))
            if not continues_character(spelled):
                return tuple(found) if is_text(spelled) else ()
            if len(found) == MAX_CHARACTER_BYTES:
                break
        return ()

    def detokenizer(self, previous: Sequence[int] = ()) -> StreamingDetokenizer:
        """Makes a detokenizer for one sequence, from its first generated token.

        ``previous``: the tokens that the text continues; without them, decoders such as Llama 2's
        drop the first space.
        """
        return StreamingDetokenizer(
            self._tokenizer, self.special_ids, previous, changes_text=self._changes_text
        )


def _check_length(encoding: Encoding, max_tokens: int | None, index: int = 0) -> None:
    """Raises ``TooLongError`` before any token is converted."""
    if max_tokens is not None and len(encoding) > max_tokens:
        description = f"has {len(encoding)} tokens, at most {max_tokens} are accepted"
        raise TooLongError(description, index)


def _trimmed(text: str, start: int, end: int) -> tuple[int, int] | None:
    """The span without the leading spaces that many tokenizers include; ``None`` if empty."""
    piece = text[start:end]
    start += len(piece) - len(piece.lstrip())
    return (start, end) if start < end else None
