"""SentencePiece models of Hugging Face folders, with the folders' ids.

There, special tokens are matched in text (chat templates contain them), and ids may differ from the
model's: Marian and M2M-100 have a ``vocab.json``, XLM-R has fairseq's order.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
from tokenizers.pre_tokenizers import Metaspace

from export.errors import SourceError
from export.tokenization.sentence_piece import (
    BYTE,
    CONTROL,
    NORMAL,
    SPACE,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    SentencePieceModel,
    as_source_error,
    unmatchable,
)
from export.tokenization.special import TokenizerSpecialTokens

# A suffix for pieces that must not match in text: U+FDD0 is reserved as a noncharacter.
ONLY_DECODED = "\ufdd0"
CAMEMBERT = ("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED")
FAIRSEQ = ("<s>", "<pad>", "</s>", "<unk>")  # instead of SentencePiece's <unk>, <s>, </s>


def tokens_in_order(ids: Mapping[str, int], origin: str) -> list[str]:
    """The tokens sorted by id.

    Raises:
        SourceError: the ids are not 0, 1, 2, ...
    """
    ordered = sorted(ids.items(), key=lambda item: item[1])
    if any(second[1] - first[1] != 1 for first, second in pairwise(ordered)):
        raise SourceError(f"{origin}: the ids have gaps or duplicates")
    if not ordered or ordered[0][1] != 0:
        raise SourceError(f"{origin}: the ids do not start with 0")
    return [token for token, _ in ordered]


def own_order(model: SentencePieceModel) -> list[str]:
    """The model's own tokens, in its order."""
    return [unmatchable(p.piece) if p.type == UNUSED else str(p.piece) for p in model.pieces]


def fairseq_order(model: SentencePieceModel, languages: Sequence[str] = ()) -> list[str]:
    """XLM-R and mBART: four special tokens, all pieces but three, languages, a mask."""
    return [*FAIRSEQ, *(str(piece.piece) for piece in model.pieces[3:]), *languages, "<mask>"]


def camembert_order(model: SentencePieceModel) -> list[str]:
    """CamemBERT: five special tokens, all pieces but the unknown one, a mask."""
    return [*CAMEMBERT, *(str(piece.piece) for piece in model.pieces[1:]), "<mask>"]


def pegasus_order(model: SentencePieceModel, offset: int) -> list[str]:
    """PEGASUS: ``<pad>`` and ``</s>``, then ``offset`` more tokens, then the other pieces.

    The tokens in between are two masks and tokens that only pretraining used.

    Raises:
        SourceError: ``offset`` is too small for the masks, or the first pieces are others.
    """
    pieces = [str(piece.piece) for piece in model.pieces]
    if offset == 0:
        return own_order(model)
    if offset < 3 or pieces[:2] != ["<pad>", "</s>"]:
        raise SourceError(f"{model.origin}: not PEGASUS's pieces, or offset {offset}")
    unused = [f"<unk_{index}>" for index in range(2, offset)]
    return [*pieces[:2], "<mask_1>", "<mask_2>", *unused, *pieces[2:]]


def not_in_text(token: str) -> str:
    """``token`` with a suffix that no text contains, so that it is only decoded."""
    return f"{token}{ONLY_DECODED}"


def to_tokenizer(
    model: SentencePieceModel, tokens: Sequence[str], special: TokenizerSpecialTokens
) -> Tokenizer:
    """``model`` with the ids of ``tokens``.

    Pieces that are not in ``tokens`` never match; tokens that are not pieces are special.

    Raises:
        SourceError: there is no unknown token, or *tokenizers* rejects the model.
    """
    with as_source_error(model.origin):
        return _to_tokenizer(model, tokens, special)


def _to_tokenizer(
    model: SentencePieceModel, tokens: Sequence[str], special: TokenizerSpecialTokens
) -> Tokenizer:
    kinds = {str(piece.piece): piece.type for piece in model.pieces}
    unknown = _unknown(model, tokens, special)
    tokenizer = _bpe(model, tokens, unknown) if model.is_bpe else _unigram(model, tokens, unknown)
    tokenizer.add_tokens(
        [
            AddedToken(token, normalized=True, special=False)
            for token in tokens
            if model.is_bpe and kinds.get(token) == USER_DEFINED
        ]
    )
    none = (CONTROL, UNKNOWN)
    ordinary = (SPACE, ONLY_DECODED)
    special.add_to(
        tokenizer,
        [t for t in tokens if kinds.get(t, CONTROL) in none and not t.endswith(ordinary)],
    )
    return tokenizer


def _unknown(
    model: SentencePieceModel, tokens: Sequence[str], special: TokenizerSpecialTokens
) -> str:
    pieces = [str(piece.piece) for piece in model.pieces if piece.type == UNKNOWN]
    for token in (*pieces, special.tokens.get("unk", "<unk>")):
        if token in tokens:
            return token
    raise SourceError(f"{model.origin}: no unknown token")


def _unigram(model: SentencePieceModel, tokens: Sequence[str], unknown: str) -> Tokenizer:
    pieces = [str(piece.piece) for piece in model.pieces]
    scores = dict(zip(pieces, model.scores(), strict=True))
    has_bytes = bool(model.trainer.byte_fallback)
    vocabulary = [(token, scores.get(token, 0.0)) for token in tokens]
    tokenizer = Tokenizer(models.Unigram(vocabulary, tokens.index(unknown), has_bytes))
    if model.trainer.split_by_whitespace and not model.trainer.allow_whitespace_only_pieces:
        steps = [*model.rewriting(), *_prefix(model, " ")]
        tokenizer.pre_tokenizer = Metaspace(SPACE, "never", split=True)
    else:  # pieces may span several words
        steps = [*model.rewriting(), *_prefix(model, SPACE), normalizers.Replace(" ", SPACE)]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = _decoder(model, has_bytes=has_bytes)
    return tokenizer


def _bpe(model: SentencePieceModel, tokens: Sequence[str], unknown: str) -> Tokenizer:
    """BPE with all pairs of pieces that form a piece, in the order of that piece's score.

    Source: ``bpe_model.cc``, ``Model::SampleEncode``.
    """
    ids = {token: index for index, token in enumerate(tokens)}
    scored = [(str(p.piece), float(p.score)) for p in model.pieces if p.type == NORMAL]
    known = {piece for piece, _ in scored if piece in ids}
    merges = [
        (piece[:cut], piece[cut:])
        for piece, _ in sorted(scored, key=lambda item: -item[1])
        if piece in known
        for cut in range(1, len(piece))
        if piece[:cut] in known and piece[cut:] in known
    ]
    has_bytes = any(piece.type == BYTE for piece in model.pieces)
    bpe = models.BPE(
        vocab=ids, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=has_bytes
    )
    tokenizer = Tokenizer(bpe)
    steps = [*model.rewriting(), *_prefix(model, SPACE), normalizers.Replace(" ", SPACE)]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = _decoder(model, has_bytes=has_bytes)
    return tokenizer


def _prefix(model: SentencePieceModel, space: str) -> list[normalizers.Normalizer]:
    return [normalizers.Prepend(space)] if model.normalizer.add_dummy_prefix else []


def _decoder(model: SentencePieceModel, *, has_bytes: bool) -> decoders.Decoder:
    steps: list[decoders.Decoder] = [
        decoders.Replace(SPACE, " "),
        decoders.Replace(ONLY_DECODED, ""),
    ]
    if has_bytes:
        steps.append(decoders.ByteFallback())
    steps.append(decoders.Fuse())
    if model.normalizer.add_dummy_prefix:
        steps.append(decoders.Strip(" ", 1, 0))
    return decoders.Sequence(steps)
