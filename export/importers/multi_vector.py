"""Models with a vector per token: folders of ColBERT, PyLate and sentence-transformers.

Each of the three formats has a function that returns :class:`TokenRules`. Documentation of the
formats: https://github.com/stanford-futuredata/ColBERT, https://lightonai.github.io/pylate
and https://sbert.net/docs/multi_vector_encoder.
"""

import string
from collections.abc import Callable
from dataclasses import dataclass, field

from tokenizers import Tokenizer

from export.errors import SourceError, UnsupportedError
from export.importers.heads import SENTENCE_TRANSFORMERS_FILE, Head, NamedDense
from export.importers.sentence_transformers import (
    MODULES_FILE,
    OF_TEXTS,
    OF_TOKENS,
    DenseModule,
    check_normalize,
    default_prompt,
    dense_table,
    dense_weights,
    module_config,
    read_dense,
    read_modules,
    read_object,
    read_prompts,
    transformer_config,
)
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from model.bundle import Embedding, EmbeddingKind, MultiVector, Task
from model.config import DenseConfig, HeadConfig, HeadKind

COLBERT = "HF_ColBERT"  # the class in ColBERT's own folders
METADATA_FILE = "artifact.metadata"
QUERY, DOCUMENT = "query", "document"
# The defaults of PyLate and, except for the length of documents, of ColBERT.
QUERY_LENGTH, DOCUMENT_LENGTH = 32, 180
PUNCTUATION = tuple(string.punctuation)
_MASK = "MultiVectorMask"
_PYLATE_FIELDS = ("query_prefix", "document_prefix", "do_query_expansion", "skiplist_words")
# Texts to test whether a prompt is one token, whatever follows it.
_PROBES = ("a", "Some words, and more.", "(42) x")


@dataclass(frozen=True, kw_only=True)
class TokenRules:
    """How the model tokenizes texts, with tokens by name: see :class:`MultiVector`.

    Attributes:
        document_length: None: as many tokens as the model has positions.
        fills: whether queries are padded.
        filler: None: the mask token or, without one, the end token.
        origin: the file with the rules.
    """

    query_marker: str = ""
    document_marker: str = ""
    query_length: int | None
    document_length: int | None
    fills: bool
    filler: str | None = None
    attends_to_filler: bool = False
    skipped: tuple[str, ...] = ()
    prompts: dict[str, str] = field(default_factory=dict)
    is_normalized: bool = True
    dense: list[DenseModule] = field(default_factory=list)
    origin: str


def is_multi_vector(folder: HuggingFaceFolder) -> bool:
    """Whether the folder is a model with a vector per token."""
    return _reader(folder) is not None


def multi_vector_embedder(folder: HuggingFaceFolder, max_positions: int) -> Head:
    """The head with a vector per token.

    Args:
        max_positions: the model's limit, also for documents.

    Raises:
        SourceError: a token is missing, or a length is too small or too large.
        UnsupportedError: a file needs a feature that is not supported.
    """
    read = _reader(folder)
    if read is None:
        raise UnsupportedError(f"{folder.path}: not a model with a vector for each token")
    rules = read(folder)
    configs = tuple(module.layer.config for module in rules.dense)
    spec, prompts = _spec(folder, rules, max_positions)
    default = default_prompt(folder, rules.prompts)
    return Head(
        config=HeadConfig(
            kind=HeadKind.MULTI_VECTOR_EMBEDDING, normalize=rules.is_normalized, dense=configs
        ),
        tasks=(Task.EMBED, Task.RERANK),
        table=dense_table(rules.dense),
        weights=dense_weights(rules.dense),
        embedding=Embedding(
            kind=EmbeddingKind.MULTI_VECTOR,
            size=configs[-1].size if configs else folder.config.positive("hidden_size"),
            is_normalized=rules.is_normalized,
            multi_vector=spec,
            prompts=prompts,
            default_prompt=default if default in prompts else None,
        ),
    )


def _reader(folder: HuggingFaceFolder) -> Callable[[HuggingFaceFolder], TokenRules] | None:
    modules, config = read_modules(folder), read_object(folder, SENTENCE_TRANSFORMERS_FILE)
    if not modules:
        return _colbert if COLBERT in folder.config.texts("architectures") else None
    model_type = config.text("model_type", "")
    if model_type == "MultiVectorEncoder" or any(module.kind == _MASK for module in modules):
        return _sentence_transformers
    is_pylate = model_type == "ColBERT" or any(name in config for name in _PYLATE_FIELDS)
    return _pylate if is_pylate else None


def _colbert(folder: HuggingFaceFolder) -> TokenRules:
    metadata = read_object(folder, METADATA_FILE)
    check_supported(metadata, similarity=("cosine",), interaction=("colbert",))
    if "linear.weight" not in folder.weights:
        raise SourceError(f"{folder.path}: {COLBERT} without the weight linear.weight")
    size = folder.weights["linear.weight"].shape[0]
    if metadata.positive("dim", size) != size:
        raise SourceError(f"{METADATA_FILE}: dim is {metadata['dim']}, but vectors have {size}")
    layer = NamedDense(linear="linear", config=DenseConfig(size=size, bias=False))
    return TokenRules(
        query_marker=metadata.text("query_token_id", "[unused0]"),
        document_marker=metadata.text("doc_token_id", "[unused1]"),
        query_length=metadata.positive("query_maxlen", QUERY_LENGTH),
        document_length=metadata.positive("doc_maxlen", DOCUMENT_LENGTH),
        fills=True,
        attends_to_filler=metadata.flag("attend_to_mask_tokens", False),
        skipped=PUNCTUATION if metadata.flag("mask_punctuation", True) else (),
        dense=[DenseModule(layer, {})],
        origin=METADATA_FILE,
    )


def _pylate(folder: HuggingFaceFolder) -> TokenRules:
    config = read_object(folder, SENTENCE_TRANSFORMERS_FILE)
    # PyLate's class reads token vectors, whatever its configuration says.
    dense = _token_dense(folder, (), OF_TOKENS, OF_TEXTS)
    transformer_config(folder)
    skipped = config.texts("skiplist_words") if "skiplist_words" in config else PUNCTUATION
    fills = config.flag("do_query_expansion", True)
    return TokenRules(
        query_marker=config.text("query_prefix", "[Q] "),
        document_marker=config.text("document_prefix", "[D] "),
        query_length=config.positive("query_length", QUERY_LENGTH),
        document_length=config.positive("document_length", DOCUMENT_LENGTH),
        fills=fills,
        attends_to_filler=fills and config.flag("attend_to_expansion_tokens", False),
        skipped=tuple(skipped),
        prompts=read_prompts(folder),
        dense=dense,
        origin=config.origin,
    )


def _sentence_transformers(folder: HuggingFaceFolder) -> TokenRules:
    config, modules = read_object(folder, SENTENCE_TRANSFORMERS_FILE), read_modules(folder)
    check_supported(config, similarity_fn_name=("maxsim", "MaxSim"))
    is_normalized = any(module.kind == "Normalize" for module in modules)
    dense = _token_dense(folder, (_MASK, "Normalize"), OF_TOKENS)
    check_normalize(folder, modules, OF_TOKENS)
    mask = Fields({}, MODULES_FILE)
    for module in modules:
        if module.kind == _MASK:
            mask = module_config(folder, module.path)
    skipped = tuple(mask.texts("skiplist_words"))
    if skipped:
        check_supported(mask, skiplist_tasks=([DOCUMENT],))
    check_supported(mask, keep_only_token_ids=([],))
    transformer = transformer_config(folder)
    expansion = transformer.fields("query_expansion")
    if expansion:
        # "min" would not cut longer queries. Without the module, masks would have no vectors.
        check_supported(expansion, strategy=("fixed",))
        if all(module.kind != _MASK for module in modules):
            raise UnsupportedError(f"{MODULES_FILE}: query_expansion without {_MASK}")
    tokenizer_limit = read_object(folder, "tokenizer_config.json").get("model_max_length")
    limit = tokenizer_limit if type(tokenizer_limit) is int else None
    query_length = transformer.optional_integer("query_length")
    return TokenRules(
        query_length=expansion.positive("length") if expansion else query_length or limit,
        document_length=transformer.optional_integer("document_length") or limit,
        fills=bool(expansion),
        filler=expansion.text("token", "") or None,
        attends_to_filler=expansion.flag("attend", False),
        skipped=skipped,
        prompts=read_prompts(folder),
        is_normalized=is_normalized,
        dense=dense,
        origin=transformer.origin,
    )


def _token_dense(
    folder: HuggingFaceFolder, others: tuple[str, ...], *vectors: str
) -> list[DenseModule]:
    """The dense layers. They may be followed by the modules ``others``, each at most once."""
    modules = read_modules(folder)
    kinds = [module.kind for module in modules]
    paths = [module.path for module in modules if module.kind == "Dense"]
    last = kinds[1 + len(paths) :]
    if kinds != ["Transformer", *["Dense"] * len(paths), *last] or not (
        len(set(last)) == len(last) and set(last) <= set(others)
    ):
        more = f", then {' and '.join(others)}" if others else ""
        raise UnsupportedError(
            f"{MODULES_FILE}: the modules {', '.join(kinds)}; supported for a vector for each "
            f"token: Transformer and any number of Dense{more}"
        )
    return [read_dense(folder, path, *vectors) for path in paths]


def _spec(
    folder: HuggingFaceFolder, rules: TokenRules, max_positions: int
) -> tuple[MultiVector, dict[str, str]]:
    """The rules with token ids, and the prompts that are not markers."""
    tokenizer, origin = folder.tokenizer, rules.origin
    markers = {QUERY: rules.query_marker, DOCUMENT: rules.document_marker}
    ids = {role: _id(tokenizer, token, origin) for role, token in markers.items() if token}
    prompts = dict(rules.prompts)
    for role in (QUERY, DOCUMENT):
        marker = None if role in ids else _marker(tokenizer, prompts.get(role, ""))
        if marker is not None:
            ids[role] = marker
            del prompts[role]
    with_special, text = (
        tokenizer.encode("a", add_special_tokens=flag).ids for flag in (True, False)
    )
    lengths = {
        QUERY: rules.query_length or max_positions,
        DOCUMENT: min(rules.document_length or max_positions, max_positions),
    }
    if not rules.fills:
        lengths[QUERY] = min(lengths[QUERY], max_positions)
    for role, length in lengths.items():
        least = len(with_special) - len(text) + (role in ids) + 1
        if not least <= length <= max_positions:
            raise SourceError(
                f"{origin}: {length} tokens of a {role}; between {least} and {max_positions} are "
                "possible"
            )
    skipped = {tokenizer.token_to_id(word) for word in rules.skipped}
    spec = MultiVector(
        query_marker=ids.get(QUERY),
        document_marker=ids.get(DOCUMENT),
        query_length=lengths[QUERY],
        document_length=lengths[DOCUMENT],
        has_end_token=with_special[-1:] != text[-1:],
        filler=_filler(folder, rules) if rules.fills else None,
        attends_to_filler=rules.attends_to_filler,
        skipped=tuple(sorted(token for token in skipped if token is not None)),
    )
    return spec, prompts


def _id(tokenizer: Tokenizer, token: str, origin: str) -> int:
    id_ = tokenizer.token_to_id(token)
    if id_ is None:
        raise SourceError(f"{origin}: the tokenizer has no token {token!r}")
    return int(id_)


def _marker(tokenizer: Tokenizer, prompt: str) -> int | None:
    """The added token ``prompt``, if it adds exactly this one token to texts; otherwise None."""
    if not prompt:
        return None
    found = set()
    for probe in _PROBES:
        plain, marked = (tokenizer.encode(text).ids for text in (probe, prompt + probe))
        if len(marked) < 2 or [*marked[:1], *marked[2:]] != plain:
            return None
        found.add(marked[1])
    (marker,) = found if len(found) == 1 else (None,)
    return marker if marker in tokenizer.get_added_tokens_decoder() else None


def _filler(folder: HuggingFaceFolder, rules: TokenRules) -> int:
    special = folder.special_tokens
    token = rules.filler or special.get("mask_token") or special.get("eos_token")
    if token is None:
        raise SourceError(f"{folder.path}: no mask token, which fills up queries")
    return _id(folder.tokenizer, token, rules.origin)
