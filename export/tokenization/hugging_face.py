"""A Hugging Face folder's tokenizer, in any of its formats, as *tokenizers* JSON."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from export.errors import SourceError, UnsupportedError
from export.readers.fields import Fields
from export.tokenization.byte_level_bpe import ByteLevelBpe
from export.tokenization.class_fields import apply_class_fields
from export.tokenization.configured_tokens import add_missing, missing_tokens
from export.tokenization.languages import languages_of
from export.tokenization.sentence_piece import SentencePieceModel, read_sentence_piece
from export.tokenization.sentence_piece_ids import (
    camembert_order,
    fairseq_order,
    not_in_text,
    own_order,
    pegasus_order,
    to_tokenizer,
    tokens_in_order,
)
from export.tokenization.special import (
    TEMPLATES,
    TokenizerSpecialTokens,
    class_name,
    special_tokens,
)
from export.tokenization.subword_nmt import subword_nmt

TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
TOKEN_MAP_FILE = "special_tokens_map.json"
ADDED_FILE = "added_tokens.json"
SENTENCE_PIECES = (
    "tokenizer.model",
    "spiece.model",
    "spm.model",
    "sentencepiece.bpe.model",
    "sentencepiece.model",
    "source.spm",
)
TARGET_PIECES = "target.spm"
SUBWORD_NMT = "BlenderbotSmall"  # the class whose merges are of letters
_FAIRSEQ = ("XLMRoberta", "MBart", "MBart50", "Nllb")


@dataclass(frozen=True, kw_only=True)
class TokenizerFolder:
    """The input of a converter. ``name`` is the tokenizer's class, from :func:`class_name`."""

    path: Path
    config: Fields
    special: TokenizerSpecialTokens
    name: str

    def json(self, name: str) -> Fields:
        """The JSON object in the file ``name``; empty if there is no such file."""
        return read_optional_fields(self.path / name)


def read_text(path: Path) -> str:
    """The text in ``path``.

    Raises:
        SourceError: it is not UTF-8.
    """
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise SourceError(f"{path.name}: {error}") from error


def read_fields(path: Path) -> Fields:
    """The JSON object in ``path``.

    Raises:
        SourceError: it cannot be read, or is not a JSON object.
    """
    try:
        value: object = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path.name}: {error}") from error
    if not isinstance(value, dict):
        raise SourceError(f"{path.name} is not a JSON object")
    return Fields(value, path.name)


def read_optional_fields(path: Path) -> Fields:
    """The JSON object in ``path``; empty if there is no such file."""
    return read_fields(path) if path.is_file() else Fields({}, path.name)


def parse_tokenizer(tokenizer_json: str, path: Path) -> Tokenizer:
    """The tokenizer of the checkpoint ``path``.

    Raises:
        SourceError: it is damaged.
    """
    try:
        return Tokenizer.from_str(tokenizer_json)
    except Exception as error:
        # The library raises plain Exception.
        raise SourceError(f"{path}: the tokenizer cannot be read: {error}") from error


def read_tokenizer(path: Path, config: Fields) -> str:
    """The tokenizer of the folder ``path`` as *tokenizers* JSON that neither pads nor truncates.

    Args:
        config: the folder's config.json.

    Raises:
        SourceError: a file is damaged, or files are inconsistent.
        UnsupportedError: no file has a known format (the message lists them), the class of a
            folder without tokenizer.json is not known, or fields conflict.
    """
    if (path / TOKENIZER_FILE).is_file() and not _ignores_tokenizer_json(path, config):
        tokenizer = dict(read_fields(path / TOKENIZER_FILE))
        tokenizer.update(truncation=None, padding=None)
        own = path / TOKENIZER_CONFIG_FILE
        if not own.is_file():  # tokenizer.json alone has all information
            return json.dumps(tokenizer, ensure_ascii=False)
        apply_class_fields(tokenizer, read_fields(own), config)
        return _with_configured_tokens(path, json.dumps(tokenizer, ensure_ascii=False), config)
    for format_ in TOKENIZER_FORMATS:
        if format_.matches(path):
            return format_.convert(_folder(path, config)).to_str()
    formats = ", ".join([TOKENIZER_FILE, *(format_.description for format_ in TOKENIZER_FORMATS)])
    raise UnsupportedError(f"{path}: no tokenizer; supported: {formats}")


def _with_configured_tokens(path: Path, tokenizer_json: str, config: Fields) -> str:
    tokenizer = parse_tokenizer(tokenizer_json, path)
    files = (path / name for name in (TOKENIZER_CONFIG_FILE, TOKEN_MAP_FILE, ADDED_FILE))
    missing = missing_tokens(tokenizer, *map(read_optional_fields, files))
    if not missing:
        return tokenizer_json
    add_missing(tokenizer, missing, config.integer("vocab_size", 0))
    return str(tokenizer.to_str())


def _ignores_tokenizer_json(path: Path, config: Fields) -> bool:
    """Whether the folder's class reads ``vocab.json`` and ``merges.txt`` alone."""
    name = class_name(read_optional_fields(path / TOKENIZER_CONFIG_FILE), config)
    return name == SUBWORD_NMT and _has_merges(path)


def _has_merges(path: Path) -> bool:
    return (path / "merges.txt").is_file() and (path / "vocab.json").is_file()


def _folder(path: Path, config: Fields) -> TokenizerFolder:
    own = read_optional_fields(path / TOKENIZER_CONFIG_FILE)
    name = class_name(own, config)
    if name == "M2M100" and not (path / "vocab.json").is_file():
        name = "Nllb"  # the same model class with another tokenizer
    if name not in TEMPLATES:
        class_ = name or config.text("model_type", "")
        raise UnsupportedError(
            f"{path}: no {TOKENIZER_FILE}, without which the tokenizer class {class_!r} is not "
            "supported; transformers writes that file when it saves the tokenizer"
        )
    special = special_tokens(
        own,
        read_optional_fields(path / TOKEN_MAP_FILE),
        read_optional_fields(path / ADDED_FILE),
        name,
    )
    return TokenizerFolder(path=path, config=own, special=special, name=name)


def _sentence_piece_path(path: Path) -> Path | None:
    return next((path / name for name in SENTENCE_PIECES if (path / name).is_file()), None)


def convert_sentence_piece(folder: TokenizerFolder) -> Tokenizer:
    """A SentencePiece model with its own ids, its family's, or those of ``vocab.json``."""
    path = _sentence_piece_path(folder.path)
    if path is None:
        raise SourceError(f"{folder.path}: no SentencePiece model")
    model = read_sentence_piece(path)
    return to_tokenizer(model, _tokens(folder, model), folder.special)


def _tokens(folder: TokenizerFolder, model: SentencePieceModel) -> list[str]:
    """The tokens in the order of their ids, which differs between families."""
    languages = languages_of(folder.name, folder.config)
    codes = [] if languages is None else languages.tokens
    ids = folder.json("vocab.json")
    if ids:
        listed = tokens_in_order({token: ids.integer(token) for token in ids}, ids.origin)
        return [*_of_both_sides(folder, model, listed), *codes]
    if folder.name in _FAIRSEQ:
        return fairseq_order(model, codes)
    if folder.name == "Camembert":
        return camembert_order(model)
    if folder.name == "DebertaV2":
        return _deberta_order(folder, model)
    if folder.name == "Pegasus":
        return pegasus_order(model, folder.config.integer("offset", 103))
    return own_order(model)


def _deberta_order(folder: TokenizerFolder, model: SentencePieceModel) -> list[str]:
    """The model's own tokens, and a mask after them.

    Raises:
        UnsupportedError: the class splits or changes texts before the model does.
    """
    for field in ("do_lower_case", "split_by_punct"):
        if folder.config.flag(field, False):
            raise UnsupportedError(
                f"{folder.path}: {field} is not supported without {TOKENIZER_FILE}"
            )
    return list(dict.fromkeys((*own_order(model), folder.special.tokens["mask"])))


def _of_both_sides(
    folder: TokenizerFolder, model: SentencePieceModel, tokens: list[str]
) -> list[str]:
    """Makes tokens that only the target's model has unmatchable in text: they are only decoded."""
    target = folder.path / TARGET_PIECES
    if not target.is_file():
        return tokens
    source_pieces = {str(piece.piece) for piece in model.pieces}
    only_target = {str(p.piece) for p in read_sentence_piece(target).pieces} - source_pieces
    return [not_in_text(token) if token in only_target else token for token in tokens]


def convert_vocabulary(folder: TokenizerFolder) -> Tokenizer:
    """``vocab.txt`` with one token per line: BERT's WordPiece or ESM's residues."""
    lines = read_text(folder.path / "vocab.txt").split("\n")
    tokens = lines[:-1] if lines[-1] == "" else lines
    vocabulary = {token.rstrip("\r"): index for index, token in enumerate(tokens)}
    unknown = folder.special.tokens.get("unk", "[UNK]")
    if unknown not in vocabulary:
        raise SourceError(f"vocab.txt: no unknown token {unknown}")
    convert = _residues if folder.name == "Esm" else _word_piece
    return convert(folder, vocabulary, unknown)


def _residues(folder: TokenizerFolder, vocabulary: dict[str, int], unknown: str) -> Tokenizer:
    """Greedy longest match from the left, in proteins or DNA; anything else is unknown."""
    vocabulary = {token.strip(): index for token, index in vocabulary.items()}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    folder.special.add_to(tokenizer)
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in vocabulary])
    return tokenizer


def _word_piece(folder: TokenizerFolder, vocabulary: dict[str, int], unknown: str) -> Tokenizer:
    """WordPiece (Devlin et al. 2018; Wu et al. 2016)."""
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=unknown))
    strip_accents = folder.config.get("strip_accents")
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=folder.config.flag("tokenize_chinese_chars", True),
        strip_accents=strip_accents if isinstance(strip_accents, bool) else None,
        lowercase=folder.config.flag("do_lower_case", True),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece("##")
    folder.special.add_to(tokenizer)
    return tokenizer


def convert_merges(folder: TokenizerFolder) -> Tokenizer:
    """``vocab.json`` and ``merges.txt``: BPE of bytes (Radford et al. 2019) or of letters."""
    ids = folder.json("vocab.json")
    tokens = tokens_in_order({token: ids.integer(token) for token in ids}, ids.origin)
    lines = read_text(folder.path / "merges.txt").split("\n")
    merges = [line.rstrip("\r") for line in lines if line and not line.startswith("#version")]
    if folder.name == SUBWORD_NMT:
        tokenizer = subword_nmt(tokens, merges, folder.special.tokens)
        folder.special.add_to(tokenizer)
        return tokenizer
    bpe = ByteLevelBpe(tokens=tokens, merges=merges, pre_tokenizer="gpt-2")
    tokenizer = Tokenizer.from_str(bpe.to_json())
    if folder.config.flag("add_prefix_space", folder.name == "Blenderbot"):
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    folder.special.add_to(tokenizer)
    return tokenizer


@dataclass(frozen=True, kw_only=True)
class TokenizerFormat:
    """A file format of a tokenizer."""

    description: str
    matches: Callable[[Path], bool]
    convert: Callable[[TokenizerFolder], Tokenizer]


TOKENIZER_FORMATS = (
    TokenizerFormat(
        description=f"a SentencePiece model ({', '.join(SENTENCE_PIECES)})",
        matches=lambda path: _sentence_piece_path(path) is not None,
        convert=convert_sentence_piece,
    ),
    TokenizerFormat(
        description="vocab.json with merges.txt",
        matches=_has_merges,
        convert=convert_merges,
    ),
    TokenizerFormat(
        description="vocab.txt",
        matches=lambda path: (path / "vocab.txt").is_file(),
        convert=convert_vocabulary,
    ),
)
