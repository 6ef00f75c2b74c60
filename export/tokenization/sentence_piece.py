"""SentencePiece models (Kudo and Richardson 2018) as *tokenizers* JSON, as Marian uses them.

:mod:`export.tokenization.sentence_piece_ids` does the same for Hugging Face folders.

The file is a protocol buffer, ``sentencepiece_model.proto`` of the library. Two differences from
the library remain. If two segmentations have the same score, the rounding of its float32 sums
decides: with the vocabulary of the default models, in about one of 10,000 strings (418,495 messages
in 12 languages, and 50,000 of them decomposed). And a typed U+2581 is decoded as a space.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2 as proto
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, processors
from tokenizers.pre_tokenizers import Metaspace

from export.errors import ExportError, SourceError, UnsupportedError
from export.supported import lookup
from export.tokenization.charsmap import find_error

SPACE = "\u2581"  # the library's replacement for a space

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # SentencePiece.Type

# The compiled rules with these names contain Unicode's NFKC. *tokenizers* applies only the first
# matching rule of a grapheme and drops the rest of it; applying NFKC first avoids that.
_COMPOSED = ("nfkc", "nfkc_cf", "nmt_nfkc", "nmt_nfkc_cf")


@dataclass(frozen=True, kw_only=True)
class SentencePieceModel:
    """A unigram or BPE model, as its file describes it."""

    origin: str
    pieces: list[Any]
    trainer: Any
    normalizer: Any

    @property
    def is_bpe(self) -> bool:
        return str(self.trainer.ModelType.Name(self.trainer.model_type)) == "BPE"

    @property
    def unk(self) -> int:
        return int(self.trainer.unk_id)

    @property
    def eos(self) -> int:
        return int(self.trainer.eos_id)

    def to_json(self, *, append_eos: bool, extra_control_tokens: tuple[str, ...] = ()) -> str:
        """The tokenizer as *tokenizers* JSON.

        Args:
            append_eos: append the end-of-sentence token to every encoded text.
            extra_control_tokens: their ids follow the model's own.

        Raises:
            SourceError: the model is inconsistent.
            UnsupportedError: *tokenizers* cannot express the model.
        """
        if self.is_bpe:
            raise UnsupportedError(
                f"{self.origin}: model_type 'BPE' is not supported; supported: UNIGRAM"
            )
        with as_source_error(self.origin):
            return self._to_json(append_eos, extra_control_tokens)

    def _to_json(self, append_eos: bool, extra_control_tokens: tuple[str, ...]) -> str:
        spellings = [self._spelling(piece) for piece in self.pieces]
        scores = self.scores()
        extra = [unmatchable(token) for token in extra_control_tokens]
        if not 0 <= self.unk < len(spellings):
            raise SourceError(f"{self.origin}: the unknown token's id is {self.unk}")
        vocabulary = [*zip(spellings, scores, strict=True), *((token, 0.0) for token in extra)]
        has_bytes = bool(self.trainer.byte_fallback)
        tokenizer = Tokenizer(models.Unigram(vocabulary, self.unk, has_bytes))
        tokenizer.normalizer = normalizers.Sequence([*self.rewriting(), *self._prefix()])
        scheme = "always" if self.normalizer.add_dummy_prefix else "never"
        tokenizer.pre_tokenizer = Metaspace(SPACE, "never", split=True)
        decoder: decoders.Decoder = decoders.Metaspace(SPACE, scheme, split=True)
        if has_bytes:
            decoder = decoders.Sequence([decoders.ByteFallback(), decoder])
        tokenizer.decoder = decoder
        if append_eos:
            if not 0 <= self.eos < len(spellings):
                raise SourceError(f"{self.origin}: the end-of-sentence token's id is {self.eos}")
            end = spellings[self.eos]
            tokenizer.post_processor = processors.TemplateProcessing(
                single=["$A", end], special_tokens=[(end, self.eos)]
            )
        control = [
            spelling
            for spelling, piece in zip(spellings, self.pieces, strict=True)
            if piece.type == CONTROL
        ]
        tokenizer.add_special_tokens(
            [AddedToken(token, normalized=False, special=True) for token in (*control, *extra)]
        )
        self._check_user_defined(tokenizer)
        return tokenizer.to_str()

    def scores(self) -> list[float]:
        """Log probabilities; a user-defined piece scores above all its other segmentations.

        This is the library's rule (``unigram_model.cc``, ``Model::EncodeOptimized``).
        """
        best = max((piece.score for piece in self.pieces if piece.type == NORMAL), default=0.0)
        return [
            len(piece.piece.encode()) * best - 0.1 if piece.type == USER_DEFINED else piece.score
            for piece in self.pieces
        ]

    def _check_user_defined(self, tokenizer: Tokenizer) -> None:
        for piece in self.pieces:
            symbol = piece.piece
            normalized = tokenizer.normalizer.normalize_str(symbol).removeprefix(" ")
            if piece.type == USER_DEFINED and (normalized != symbol or " " in symbol):
                raise UnsupportedError(f"{self.origin}: normalising changes the symbol {symbol!r}")

    def _spelling(self, piece: Any) -> str:
        """The vocabulary entry for ``piece``.

        The library never matches control, unknown and unused pieces in text: there, ``</s>`` is an
        HTML tag. *tokenizers* matches its whole vocabulary, so these pieces get unmatchable names.
        """
        if piece.type == UNKNOWN:
            return str(self.trainer.unk_surface)  # the library decodes the unknown token to this
        if piece.type in (CONTROL, UNUSED):
            return unmatchable(piece.piece)
        return str(piece.piece)

    def rewriting(self) -> list[normalizers.Normalizer]:
        """The library's normalization up to the replacement of spaces."""
        steps: list[normalizers.Normalizer] = []
        if self.normalizer.precompiled_charsmap:
            if self.normalizer.name in _COMPOSED:
                steps.append(normalizers.NFKC())
            steps.append(normalizers.Precompiled(self.normalizer.precompiled_charsmap))
        if self.normalizer.remove_extra_whitespaces:
            steps.append(normalizers.Replace(Regex(f"^ +|[ {SPACE}]+$"), ""))
            steps.append(normalizers.Replace(Regex(" {2,}"), " "))
        return steps

    def _prefix(self) -> list[normalizers.Normalizer]:
        # Prepend leaves an empty text empty, as the library does.
        return [normalizers.Prepend(" ")] if self.normalizer.add_dummy_prefix else []


@contextmanager
def as_source_error(origin: str) -> Iterator[None]:
    """Converts the plain ``Exception`` of *tokenizers* for an invalid model to a SourceError."""
    try:
        yield
    except ExportError:
        raise
    except Exception as error:
        raise SourceError(f"{origin}: {error}") from error


def unmatchable(token: str) -> str:
    """``token`` plus a space sign: after pre-tokenization, no word ends with one."""
    return f"{token}{SPACE}"


def read_sentence_piece(path: Path) -> SentencePieceModel:
    """Reads a ``.spm`` or ``.model`` file.

    Raises:
        SourceError: it is unreadable, or not a SentencePiece model.
        UnsupportedError: it is neither unigram nor BPE, or treats spaces in another way.
    """
    model = proto.ModelProto()  # type: ignore[attr-defined]  # made at run time
    try:
        model.ParseFromString(path.read_bytes())
    except (OSError, DecodeError) as error:
        raise SourceError(f"{path.name}: not a SentencePiece model: {error}") from error
    texts = (model.trainer_spec.unk_surface, *(piece.piece for piece in model.pieces))
    if not all(isinstance(text, str) for text in texts):  # bytes if it is not UTF-8
        raise SourceError(f"{path.name}: a piece is not UTF-8")
    if not model.pieces or not all(piece.piece for piece in model.pieces):
        raise SourceError(f"{path.name}: a SentencePiece model without pieces, or with empty ones")
    if not all(math.isfinite(piece.score) for piece in model.pieces):
        raise SourceError(f"{path.name}: a score is not finite")
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    if normalizer.precompiled_charsmap and (message := find_error(normalizer.precompiled_charsmap)):
        raise SourceError(f"{path.name}: precompiled_charsmap: {message}")
    kind = trainer.ModelType.Name(trainer.model_type)
    lookup({"UNIGRAM": None, "BPE": None}, kind, f"{path.name}: model_type")
    if trainer.treat_whitespace_as_suffix or not normalizer.escape_whitespaces:
        raise UnsupportedError(f"{path.name}: spaces must be a prefix of words")
    return SentencePieceModel(
        origin=path.name, pieces=list(model.pieces), trainer=trainer, normalizer=normalizer
    )
