"""The files of sentence-transformers around an encoder: pooling, dense layers, prompts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import torch
from torch import Tensor

from export.errors import SourceError, UnsupportedError
from export.importers.heads import SENTENCE_TRANSFORMERS_FILE, Head, NamedDense
from export.importers.renaming import Rename
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported, lookup
from model.bundle import Embedding, Task
from model.config import Activation, DenseConfig, HeadConfig, HeadKind, PoolingKind

MODULES_FILE = "modules.json"
_FAMILIES = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
# The first file that exists is used.
LIMITS_FILES = tuple(f"sentence_{family}_config.json" for family in _FAMILIES)
# By the name of a flag ``pooling_mode_…``, or by the value of ``pooling_mode``.
POOLINGS = {
    "cls_token": PoolingKind.CLS,
    "mean_tokens": PoolingKind.MEAN,
    "max_tokens": PoolingKind.MAX,
    "mean_sqrt_len_tokens": PoolingKind.MEAN_SQRT,
    "weightedmean_tokens": PoolingKind.WEIGHTED_MEAN,
    "lasttoken": PoolingKind.LAST,
    "cls": PoolingKind.CLS,
    "mean": PoolingKind.MEAN,
    "max": PoolingKind.MAX,
    "weightedmean": PoolingKind.WEIGHTED_MEAN,
}
ACTIVATIONS: dict[str, Activation | None] = {
    "Tanh": Activation.TANH,
    "GELU": Activation.GELU,
    "ReLU": Activation.RELU,
    "SiLU": Activation.SILU,
    "Identity": None,
}
_FLAG = "pooling_mode_"
# The names under which modules pass a vector per text, or a vector per token.
OF_TEXTS, OF_TOKENS = "sentence_embedding", "token_embeddings"
# the value for tokenizers without a limit
_NO_LIMIT = 1_000_000


@dataclass(frozen=True)
class Module:
    """An entry of ``modules.json``: the name of the class, and the subfolder."""

    kind: str
    path: str


@dataclass(frozen=True)
class DenseModule:
    """A dense layer, and its weights by the names in its table."""

    layer: NamedDense
    weights: Mapping[str, Tensor]


def embedder(folder: HuggingFaceFolder, hidden_size: int | None = None) -> Head:
    """An embedding head as the files describe it; without files, mean pooling.

    Args:
        hidden_size: the model's; default: ``hidden_size`` of the configuration.

    Raises:
        SourceError: a file is damaged.
        UnsupportedError: a file needs a feature that is not supported.
    """
    modules = read_modules(folder)
    kinds = [module.kind for module in modules]
    normalize = "Normalize" in kinds
    paths = [module.path for module in modules if module.kind == "Dense"]
    expected = ["Transformer", "Pooling", *["Dense"] * len(paths), *["Normalize"] * normalize]
    if modules and kinds != expected:
        raise UnsupportedError(
            f"{MODULES_FILE}: the modules {', '.join(kinds)}; supported: Transformer, Pooling, "
            "any number of Dense, and Normalize, in this order"
        )
    pooling = _pooling(folder, modules[1].path) if modules else PoolingKind.MEAN
    dense = [read_dense(folder, path, OF_TEXTS) for path in paths]
    check_normalize(folder, modules, OF_TEXTS)
    configs = tuple(module.layer.config for module in dense)
    size = configs[-1].size if configs else folder.config.positive("hidden_size", hidden_size)
    limits = transformer_config(folder)
    check_supported(limits, query_length=(None,), document_length=(None,), query_expansion=(None,))
    if "message" in limits.fields("modality_config"):
        raise UnsupportedError(
            f"{limits.origin}: modality_config has message: texts in a chat template are not "
            "supported; supported: text"
        )
    return Head(
        config=HeadConfig(
            kind=HeadKind.EMBEDDING, pooling=pooling, normalize=normalize, dense=configs
        ),
        tasks=embedder_tasks(folder),
        table=dense_table(dense),
        weights=dense_weights(dense),
        embedding=dense_embedding(folder, pooling, normalize, size),
        max_input_tokens=max_text_length(folder, limits),
    )


def is_embedder(folder: HuggingFaceFolder) -> bool:
    """Whether sentence-transformers saved ``folder`` as an embedding model.

    Raises:
        UnsupportedError: it has separate networks for queries and documents.
    """
    kinds = [module.kind for module in read_modules(folder)]
    routers = [kind for kind in kinds if kind in ("Router", "Asym")]
    if routers:
        raise UnsupportedError(
            f"{MODULES_FILE}: {routers[0]}, which reads queries and documents with different "
            "modules, is not supported; supported: one network for both"
        )
    return "Pooling" in kinds


def read_modules(folder: HuggingFaceFolder) -> list[Module]:
    """The entries of ``modules.json``; none if there is no such file."""
    value = folder.read_json(MODULES_FILE)
    rows = value if isinstance(value, list) else []
    fields = [Fields(row if isinstance(row, dict) else {}, MODULES_FILE) for row in rows]
    return [Module(row.text("type").rpartition(".")[2], row.text("path", "")) for row in fields]


def read_object(folder: HuggingFaceFolder, name: str) -> Fields:
    """The JSON object in the file ``name``; empty if there is no such file."""
    value = folder.read_json(name)
    if value is not None and not isinstance(value, dict):
        raise SourceError(f"{name}: not a JSON object")
    return Fields(value or {}, name)


def transformer_fields(folder: HuggingFaceFolder) -> Fields:
    """The configuration of the module Transformer, unchecked."""
    found = (name for name in LIMITS_FILES if folder.read_json(name) is not None)
    return read_object(folder, next(found, LIMITS_FILES[0]))


def transformer_config(folder: HuggingFaceFolder) -> Fields:
    """The configuration of the module Transformer.

    Raises:
        UnsupportedError: it changes texts or their tokenization.
    """
    config = transformer_fields(folder)
    check_supported(config, do_lower_case=(False,), processing_kwargs=({},))
    return config


def max_text_length(folder: HuggingFaceFolder, transformer: Fields) -> int | None:
    """The number of tokens to which texts are cut; in newer files, the tokenizer has it."""
    limit = transformer.optional_integer("max_seq_length")
    if limit is None and "transformer_task" in transformer:
        value = read_object(folder, "tokenizer_config.json").get("model_max_length")
        limit = value if type(value) is int and 0 < value < _NO_LIMIT else None
    return limit


def check_normalize(folder: HuggingFaceFolder, modules: list[Module], name: str) -> None:
    """Raises ``UnsupportedError`` if the module Normalize changes vectors other than ``name``."""
    for module in modules:
        if module.kind == "Normalize" and module.path:
            config = read_object(folder, f"{module.path}/config.json")
            given = (
                config.text("module_input_name", OF_TEXTS),
                config.text("module_output_name", name),
            )
            if given != (name, name):
                raise UnsupportedError(
                    f"{config.origin}: normalizes {given[0]} to {given[1]}; supported: {name}"
                )


def module_config(folder: HuggingFaceFolder, path: str) -> Fields:
    """The configuration of the module in the subfolder ``path``."""
    file = f"{path}/config.json"
    if PurePosixPath(path).name != path or folder.read_json(file) is None:
        raise SourceError(f"{file}: missing, or not a JSON object")
    return read_object(folder, file)


def _pooling(folder: HuggingFaceFolder, path: str) -> PoolingKind:
    """The only pooling that the configuration in ``path`` enables."""
    config = module_config(folder, path)
    check_supported(config, include_prompt=(True,))
    if "pooling_mode" in config:
        value = config["pooling_mode"]
        chosen = [str(name) for name in value] if isinstance(value, list) else [str(value)]
    else:
        flags = [name for name in config if name.startswith(_FLAG) and config[name] is True]
        chosen = [name.removeprefix(_FLAG) for name in flags]
    if len(chosen) != 1:
        raise UnsupportedError(f"{config.origin}: exactly one pooling is supported, not {chosen}")
    return lookup(POOLINGS, chosen[0], f"{config.origin}: pooling_mode")


def read_dense(folder: HuggingFaceFolder, path: str, *vectors: str) -> DenseModule:
    """The dense layer in ``path`` for ``vectors``: :data:`OF_TEXTS`, :data:`OF_TOKENS` or both."""
    config = module_config(folder, path)
    check_supported(config, module_input_name=vectors, module_output_name=vectors)
    name = config.text("activation_function", "torch.nn.modules.activation.Tanh")
    activation = lookup(
        ACTIVATIONS, name.rpartition(".")[2], f"{config.origin}: activation_function"
    )
    has_residual = config.flag("use_residual", False)
    if activation is not None:
        check_supported(config, use_residual=(False,))
    dense = NamedDense(
        linear=f"{path}.linear",
        config=DenseConfig(
            size=config.positive("out_features"),
            activation=activation,
            bias=config.flag("bias", True),
        ),
    )
    read = folder.read_weights(path)
    weights = {name: read[name] for name in read}
    if has_residual and "linear.weight" in weights:
        # Without an activation, W x + R x is (W + R) x; without R, the sizes are equal.
        matrix = weights["linear.weight"].float()
        residual = weights.pop("residual.weight", torch.eye(len(matrix)))
        if residual.shape != matrix.shape:
            raise SourceError(f"{config.origin}: the residual does not fit the layer")
        weights["linear.weight"] = matrix + residual
    return DenseModule(dense, {f"{path}.{name}": weight for name, weight in weights.items()})


def dense_table(dense: Sequence[DenseModule]) -> tuple[Rename, ...]:
    """The weights of dense layers as those of the head."""
    return tuple(e for index, module in enumerate(dense) for e in module.layer.table(index))


def dense_weights(dense: Sequence[DenseModule]) -> dict[str, Tensor]:
    """The weights of all dense layers by name."""
    return {name: weight for module in dense for name, weight in module.weights.items()}


def read_prompts(folder: HuggingFaceFolder) -> dict[str, str]:
    """Prompts by name."""
    prompts = read_object(folder, SENTENCE_TRANSFORMERS_FILE).fields("prompts")
    return {name: prompts.text(name) for name in prompts if prompts[name] is not None}


def default_prompt(folder: HuggingFaceFolder, prompts: Mapping[str, str]) -> str | None:
    """The name of the prompt for texts without a specified one.

    Raises:
        SourceError: it is not in ``prompts``.
    """
    default = (
        read_object(folder, SENTENCE_TRANSFORMERS_FILE).text("default_prompt_name", "") or None
    )
    if default is not None and default not in prompts:
        raise SourceError(
            f"{SENTENCE_TRANSFORMERS_FILE}: default_prompt_name {default!r} is not in prompts"
        )
    return default


def embedder_tasks(folder: HuggingFaceFolder) -> tuple[Task, ...]:
    """The tasks: also reranking, unless the model compares vectors by distance."""
    similarity = read_object(folder, SENTENCE_TRANSFORMERS_FILE).text(
        "similarity_fn_name", "cosine"
    )
    return (Task.EMBED, Task.RERANK) if similarity in ("cosine", "dot") else (Task.EMBED,)


def dense_embedding(
    folder: HuggingFaceFolder, pooling: PoolingKind, normalize: bool, size: int
) -> Embedding:
    """Dense vectors of ``size`` numbers, with the prompts of the folder.

    Raises:
        SourceError: vectors cannot be truncated as config.json says, or a prompt is missing.
    """
    prompts = read_prompts(folder)
    truncations = folder.config.integers("matryoshka_dimensions")
    if any(not 0 < dimension <= size for dimension in truncations):
        raise SourceError(f"{folder.config.origin}: matryoshka_dimensions are not in 1 to {size}")
    return Embedding(
        size=size,
        pooling=pooling,
        is_normalized=normalize,
        truncations=truncations,
        prompts=prompts,
        default_prompt=default_prompt(folder, prompts),
    )
