"""Static embeddings: the mean of a row of a table for each token, without attention.

The folders of model2vec (Tulkens and van Dongen 2024, https://github.com/MinishLab/model2vec) and
of sentence-transformers' ``StaticEmbedding``. A folder is read by the rules of the library that
wrote it: model2vec also writes ``modules.json``, but sentence-transformers, which reads it too,
counts unknown tokens and truncates no text.
"""

import json
import statistics
from pathlib import Path, PurePosixPath

import msgspec
import torch
from tokenizers import Tokenizer
from torch import Tensor

from export.checkpoint import Checkpoint, check_weights
from export.errors import SourceError, UnsupportedError
from export.importers.renaming import rename
from export.importers.samples import ENGLISH_TEXTS
from export.importers.sentence_transformers import (
    MODULES_FILE,
    OF_TEXTS,
    Module,
    check_normalize,
    dense_embedding,
    dense_table,
    dense_weights,
    embedder_tasks,
    read_dense,
    read_modules,
)
from export.importers.support import bundle_name
from export.readers.fields import Fields
from export.readers.hugging_face import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    HuggingFaceFolder,
    read_license,
)
from export.readers.safetensors_weights import SafetensorsWeights
from export.supported import check_supported
from export.tokenization.hugging_face import TOKENIZER_FILE, parse_tokenizer, read_fields
from model.bundle import SpecialTokens, StaticTokens
from model.config import (
    EmbeddingConfig,
    HeadConfig,
    HeadKind,
    Kind,
    ModelConfig,
    PoolingKind,
    StackConfig,
)
from model.position_config import PositionConfig, PositionKind

STATIC_EMBEDDING = "StaticEmbedding"
# Of model2vec: the rows, the number of each token's row, and the factor of each token's row.
ROWS, MAPPING, FACTORS = "embeddings", "mapping", "weights"
OWN_ROWS = "embedding.weight"  # of sentence-transformers
HEAD_FILES = ("head.safetensors", "pipeline.skops")  # of model2vec's classifiers
MAX_LENGTH = 512  # tokens; model2vec's default
MAX_POSITIONS = 1 << 20  # no limit of the model: servers have one
_TABLE = "embedding.tokens.weight"


def is_static(path: Path) -> bool:
    """Whether the folder ``path`` has static embeddings."""
    try:
        return path.is_dir() and (_is_model2vec(path) or _first_module(path) == STATIC_EMBEDDING)
    except (SourceError, ValueError, RecursionError):
        return False  # another format's reader says what is damaged


def import_static(path: Path) -> Checkpoint:
    """The checkpoint in the folder ``path``.

    Raises:
        SourceError: a file is missing or damaged, or the table does not fit the tokenizer.
        UnsupportedError: a file needs a feature that is not supported.
        WeightsError: a weight is missing, has the wrong shape, or is not finite.
    """
    folder, is_model2vec = _read_folder(path), _is_model2vec(path)
    modules = _read_modules(folder, is_model2vec=is_model2vec)
    subfolder = _subfolder("" if is_model2vec else modules[0].path)
    tokenizer_fields = read_fields(path / subfolder / TOKENIZER_FILE)
    tokenizer_json = _plain(tokenizer_fields)
    tokenizer = parse_tokenizer(tokenizer_json, path)
    table = _table(folder.read_weights(subfolder), tokenizer)
    dense = [read_dense(folder, x.path, OF_TEXTS) for x in modules if x.kind == "Dense"]
    head = HeadConfig(
        kind=HeadKind.EMBEDDING,
        pooling=PoolingKind.MEAN,
        normalize=any(module.kind == "Normalize" for module in modules),
        dense=tuple(module.layer.config for module in dense),
    )
    tokens = StaticTokens(blank=len(table) - 1)
    if is_model2vec:
        max_length = _length(folder.config, MAX_LENGTH)
        head = msgspec.structs.replace(head, normalize=folder.config.flag("normalize", False))
        tokens = _model2vec_tokens(tokenizer, tokens, max_length)
    else:
        max_length = _truncation(tokenizer_fields)
    config = _model_config(table, head)
    weights = {_TABLE: table, **rename(dense_table(dense), dense_weights(dense))}
    check_weights(config, weights)
    size = head.dense[-1].size if head.dense else config.hidden_size
    embedding = dense_embedding(folder, PoolingKind.MEAN, head.normalize, size)
    return Checkpoint(
        config=config,
        weights=weights,
        tokenizer_json=tokenizer_json,
        architecture="StaticModel" if is_model2vec else STATIC_EMBEDDING,
        tasks=embedder_tasks(folder),
        special_tokens=SpecialTokens(pad=tokens.blank),
        license=folder.license,
        name=bundle_name(path),
        embedding=msgspec.structs.replace(embedding, static_tokens=tokens),
        max_input_tokens=max_length,
        sample_inputs=ENGLISH_TEXTS,
    )


def _read_modules(folder: HuggingFaceFolder, *, is_model2vec: bool) -> list[Module]:
    """The modules that follow the table, after it; model2vec's may lack the file.

    Raises:
        UnsupportedError: there are others, or in another order.
    """
    modules = read_modules(folder)
    kinds = [module.kind for module in modules]
    num_dense = kinds.count("Dense")
    expected = [STATIC_EMBEDDING, *["Dense"] * num_dense, *["Normalize"] * ("Normalize" in kinds)]
    if (modules or not is_model2vec) and (kinds != expected or (is_model2vec and num_dense)):
        raise UnsupportedError(
            f"{MODULES_FILE}: the modules {', '.join(kinds)}; supported: {STATIC_EMBEDDING}, any "
            "number of Dense in folders of sentence-transformers, and Normalize, in this order"
        )
    check_normalize(folder, modules, OF_TEXTS)
    return modules


def _read_folder(path: Path) -> HuggingFaceFolder:
    heads = [name for name in HEAD_FILES if (path / name).is_file()]
    if heads:
        raise UnsupportedError(
            f"{path}: {heads[0]}: classifiers on static embeddings are not supported; without the "
            "file, the embeddings are exported"
        )
    has_config = (path / CONFIG_FILE).is_file()
    return HuggingFaceFolder(
        path=path,
        config=read_fields(path / CONFIG_FILE) if has_config else Fields({}, CONFIG_FILE),
        generation_config=Fields({}, CONFIG_FILE),
        weights={},
        chat_template=None,
        license=read_license(path / "README.md"),
    )


def _is_model2vec(path: Path) -> bool:
    """Whether model2vec wrote the folder ``path``."""
    files = path / CONFIG_FILE, path / WEIGHTS_FILE
    return all(file.is_file() for file in files) and ROWS in SafetensorsWeights([files[1]])


def _first_module(path: Path) -> str | None:
    file = path / MODULES_FILE
    rows = json.loads(file.read_text("utf-8")) if file.is_file() else []
    first = rows[0] if isinstance(rows, list) and rows else None
    kind = first.get("type") if isinstance(first, dict) else None
    return kind.rpartition(".")[2] if isinstance(kind, str) else None


def _subfolder(name: str) -> str:
    """``name``, which ``modules.json`` has; raises ``SourceError`` if it is outside the folder."""
    if name not in ("", ".") and PurePosixPath(name).name != name:
        raise SourceError(f"{MODULES_FILE}: {name} is not a folder in this folder")
    return name


def _plain(tokenizer: Fields) -> str:
    """The tokenizer as JSON, without special tokens around texts, padding and truncation."""
    values = {**tokenizer, "truncation": None, "padding": None}
    post = tokenizer.fields("post_processor")
    parts = post.get("processors") if post.get("type") == "Sequence" else [dict(post)]
    kept = [
        part
        for part in (parts if isinstance(parts, list) else [])
        if isinstance(part, dict) and part.get("type") == "ByteLevel"  # changes offsets alone
    ]
    values["post_processor"] = kept[0] if kept else None
    return json.dumps(values, ensure_ascii=False)


def _truncation(tokenizer: Fields) -> int | None:
    """The number of tokens to which sentence-transformers cuts texts; None if it does not."""
    truncation = tokenizer.fields("truncation")
    check_supported(truncation, direction=("Right",), strategy=("LongestFirst", "OnlyFirst"))
    return _length(truncation)


def _length(fields: Fields, absent: int | None = None) -> int | None:
    """``max_length``; None if it is ``null``, ``absent`` if the field is missing."""
    return (
        None if fields.get("max_length", absent) is None else fields.positive("max_length", absent)
    )


def _table(weights: SafetensorsWeights, tokenizer: Tokenizer) -> Tensor:
    """The row of each token as the mean needs it, fp32, and a row of zeros at the end.

    Raises:
        SourceError: the shapes or values do not fit each other or the tokenizer.
    """
    found = dict(weights)
    rows = found.pop(OWN_ROWS, None)
    mapping, factors = None, None
    if rows is None:
        rows, mapping, factors = (found.pop(name, None) for name in (ROWS, MAPPING, FACTORS))
    if rows is None or found:
        names = ", ".join(weights)
        raise SourceError(
            f"{WEIGHTS_FILE}: the weights {names}; expected {OWN_ROWS}, or {ROWS} with or without "
            f"{MAPPING} and {FACTORS}"
        )
    if rows.ndim != 2 or not rows.numel():
        raise SourceError(f"{WEIGHTS_FILE}: the rows have the shape {list(rows.shape)}")
    if mapping is not None:
        rows = rows[_checked_mapping(mapping, len(rows))]
    if factors is not None:
        if factors.shape != rows.shape[:1]:
            raise SourceError(
                f"{WEIGHTS_FILE}: {FACTORS} has the shape {list(factors.shape)} for {len(rows)} "
                "tokens"
            )
        rows = rows.float() * factors.float()[:, None]
    vocabulary = tokenizer.get_vocab()
    largest = max(vocabulary.values(), default=-1)
    if not vocabulary or largest >= len(rows):
        raise SourceError(
            f"{TOKENIZER_FILE}: the tokenizer has the id {largest}, but there are {len(rows)} rows"
        )
    return torch.cat([rows.float(), torch.zeros(1, rows.shape[1])])


def _checked_mapping(mapping: Tensor, num_rows: int) -> Tensor:
    is_index = not (mapping.is_floating_point() or mapping.is_complex())
    if not is_index or mapping.ndim != 1 or not mapping.numel():
        raise SourceError(f"{WEIGHTS_FILE}: {MAPPING} is not a row for each token")
    numbers = mapping.long()
    if int(numbers.min()) < 0 or int(numbers.max()) >= num_rows:
        raise SourceError(f"{WEIGHTS_FILE}: {MAPPING} has numbers of rows beyond {num_rows}")
    return numbers


def _model_config(table: Tensor, head: HeadConfig) -> ModelConfig:
    return ModelConfig(
        kind=Kind.ENCODER,
        vocabulary_size=table.shape[0],
        hidden_size=table.shape[1],
        position=PositionConfig(kind=PositionKind.NONE, max_positions=MAX_POSITIONS),
        embedding=EmbeddingConfig(),
        encoder=StackConfig(layers=()),
        head=head,
    )


def _model2vec_tokens(
    tokenizer: Tokenizer, tokens: StaticTokens, max_length: int | None
) -> StaticTokens:
    """``tokens`` as ``StaticModel.tokenize`` and ``encode`` of model2vec 0.10 read texts."""
    lengths = [len(token) for token in tokenizer.get_vocab()]
    return msgspec.structs.replace(
        tokens,
        ignored=_unknown_token(tokenizer),
        characters_per_token=None if max_length is None else int(statistics.median(lengths)),
    )


def _unknown_token(tokenizer: Tokenizer) -> int | None:
    model = Fields(json.loads(tokenizer.to_str())["model"], TOKENIZER_FILE)
    if model.text("type") == "Unigram":
        return model.optional_integer("unk_id")
    token = model.text("unk_token", "")
    id_: int | None = tokenizer.token_to_id(token)
    return id_
