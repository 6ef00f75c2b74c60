"""SentencePiece's BPE (Kudo and Richardson 2018) as *tokenizers* JSON, from pieces and scores.

SentencePiece joins the neighbours whose union has the highest score. *tokenizers* needs a list of
merges: for each piece, best first, all pairs of pieces that form it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
)

from export.errors import SourceError
from export.tokenization.bpe import add_prefix, add_special, token_ids
from export.tokenization.sentence_piece import SPACE, as_source_error

MAX_PIECE_LENGTH = 512  # characters; limits the pairs per piece


@dataclass(frozen=True, kw_only=True)
class ScoredBpe:
    """The parts of a tokenizer.

    Attributes:
        scores: one per token; parts of tokens with higher scores are joined earlier.
        unknown: for characters that no token covers, unless there is a token for each byte.
        special: tokens that are matched in text first, and omitted from decoded text.
        added: tokens that are matched in text first, and kept in decoded text.
        prefix: the first token of every sequence.
        adds_space: whether texts get a leading space.
    """

    tokens: Sequence[str]
    scores: Sequence[float]
    unknown: str
    special: Sequence[str] = ()
    added: Sequence[str] = ()
    prefix: str | None = None
    adds_space: bool = True

    def to_json(self) -> str:
        """The tokenizer as *tokenizers* JSON.

        Raises:
            SourceError: duplicate or too long tokens, or scores that are not finite.
        """
        vocabulary = token_ids(self.tokens)
        if max(map(len, self.tokens), default=0) > MAX_PIECE_LENGTH:
            raise SourceError(f"the tokenizer has a token of more than {MAX_PIECE_LENGTH} letters")
        if not all(map(math.isfinite, self.scores)):
            raise SourceError("the tokenizer has a score that is not finite")
        with as_source_error("the tokenizer"):
            return self._to_json(vocabulary)

    def _to_json(self, vocabulary: dict[str, int]) -> str:
        model = models.BPE(
            vocab=vocabulary,
            merges=self._merges(vocabulary),
            unk_token=self.unknown,
            fuse_unk=True,
            byte_fallback="<0x00>" in vocabulary,
        )
        tokenizer = Tokenizer(model)
        prepend = [normalizers.Prepend(SPACE)] if self.adds_space else []
        tokenizer.normalizer = normalizers.Sequence([*prepend, normalizers.Replace(" ", SPACE)])
        steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
        strip = [decoders.Strip(" ", 1, 0)] if self.adds_space else []
        tokenizer.decoder = decoders.Sequence([*steps, *strip])
        add_prefix(tokenizer, self.prefix)
        add_special(tokenizer, self.special)
        # Some are runs of spaces; they match after spaces are replaced by signs.
        tokenizer.add_tokens(
            [AddedToken(token, special=False, normalized=SPACE in token) for token in self.added]
        )
        return tokenizer.to_str()

    def _merges(self, vocabulary: dict[str, int]) -> list[tuple[str, str]]:
        whole = {*self.special, *self.added, self.unknown}
        order = sorted(range(len(self.tokens)), key=lambda index: (-self.scores[index], index))
        merges: list[tuple[str, str]] = []
        for index in order:
            token = self.tokens[index]
            if token in whole:
                continue
            pairs = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
            parts = [(a, b) for a, b in pairs if a in vocabulary and b in vocabulary]
            merges += sorted(parts, key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
        return merges
