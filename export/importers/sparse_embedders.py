"""Sparse vectors from a masked language model: SPLADE, as sentence-transformers saves it."""

from dataclasses import replace

import msgspec

from export.errors import UnsupportedError
from export.importers.heads import SENTENCE_TRANSFORMERS_FILE, Head, HeadReader
from export.importers.sentence_transformers import (
    MODULES_FILE,
    default_prompt,
    embedder,
    max_text_length,
    module_config,
    read_modules,
    read_object,
    read_prompts,
    transformer_config,
)
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from model.bundle import Embedding, EmbeddingKind, Task
from model.config import HeadKind

# Classes of the first module; an older class name also implies the task.
_TRANSFORMERS = ("Transformer", "MLMTransformer")
_POOLING = "SpladePooling"
# The weights of query tokens, in models whose network reads only documents (OpenSearch).
QUERY_WEIGHTS_FILE = "idf.json"
_LOG_TWICE = "log1p_relu"


def is_sparse(folder: HuggingFaceFolder) -> bool:
    """Whether the folder is a sparse embedding model, or is to be read as one."""
    model_type = read_object(folder, SENTENCE_TRANSFORMERS_FILE).text("model_type", "")
    return (
        folder.vectors == EmbeddingKind.SPARSE
        or model_type == "SparseEncoder"
        or any(module.kind == _POOLING for module in read_modules(folder))
    )


def sparse_embedder(folder: HuggingFaceFolder, masked: HeadReader) -> Head:
    """Weights of vocabulary tokens; without ``modules.json``, as in SPLADE v2.

    Args:
        masked: the reader of the folder's class.

    Raises:
        UnsupportedError: the class is not a masked language model, or the pooling is unsupported.
    """
    modules = read_modules(folder)
    kinds = [module.kind for module in modules]
    if modules and (len(kinds) != 2 or kinds[0] not in _TRANSFORMERS or kinds[1] != _POOLING):
        raise UnsupportedError(
            f"{MODULES_FILE}: the modules {', '.join(kinds)}; supported for sparse vectors: "
            f"Transformer or MLMTransformer, and {_POOLING}"
        )
    if not modules and (folder.path / QUERY_WEIGHTS_FILE).is_file():
        raise UnsupportedError(
            f"{folder.path}: {QUERY_WEIGHTS_FILE} gives tokens of queries fixed weights, which "
            "is not supported; supported: one network for queries and documents"
        )
    log_twice = False
    if modules:
        pooling = module_config(folder, modules[1].path)
        check_supported(
            pooling, pooling_strategy=("max",), activation_function=("relu", _LOG_TWICE)
        )
        log_twice = pooling.text("activation_function", "relu") == _LOG_TWICE
    transformer = transformer_config(folder)
    check_supported(
        transformer,
        transformer_task=("fill-mask",),
        query_length=(None,),
        document_length=(None,),
        query_expansion=(None,),
    )
    head = None if masked is embedder else masked(folder)
    if head is None or head.config.kind != HeadKind.LANGUAGE_MODEL:
        raise UnsupportedError(
            f"{folder.config.origin}: sparse vectors need a masked language model, a class "
            "…ForMaskedLM"
        )
    prompts = read_prompts(folder)
    similarity = read_object(folder, SENTENCE_TRANSFORMERS_FILE).text("similarity_fn_name", "dot")
    return replace(
        head,
        config=msgspec.structs.replace(
            head.config, kind=HeadKind.SPARSE_EMBEDDING, log_twice=log_twice
        ),
        tasks=(Task.EMBED, Task.RERANK) if similarity == "dot" else (Task.EMBED,),
        embedding=Embedding(
            kind=EmbeddingKind.SPARSE,
            size=folder.config.positive("vocab_size"),
            is_normalized=False,
            prompts=prompts,
            default_prompt=default_prompt(folder, prompts),
        ),
        max_input_tokens=max_text_length(folder, transformer),
    )
