"""The files of sentence-transformers around an encoder: pooling, dense layers, prompts."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from torch import Tensor

from export.errors import SourceError, UnsupportedError
from export.importers.heads import Head, NamedDense
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported, lookup
from model.bundle import Embedding, Task
from model.config import Activation, DenseConfig, HeadConfig, HeadKind, PoolingKind

MODULES_FILE = "modules.json"
PROMPTS_FILE = "config_sentence_transformers.json"
_FAMILIES = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
# The first that exists counts.
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


@dataclass(frozen=True)
class _Module:
    kind: str
    path: str


def embedder(folder: HuggingFaceFolder) -> Head:
    """An embedding head as the files describe it; without files, mean pooling.

    Raises:
        SourceError: a file is damaged.
        UnsupportedError: a file needs a feature that is not supported.
    """
    modules = _modules(folder)
    kinds = [module.kind for module in modules]
    normalize = "Normalize" in kinds
    dense = [_dense(folder, module.path) for module in modules if module.kind == "Dense"]
    expected = ["Transformer", "Pooling", *["Dense"] * len(dense), *["Normalize"] * normalize]
    if modules and kinds != expected:
        raise UnsupportedError(
            f"{MODULES_FILE}: the modules {', '.join(kinds)}; supported: Transformer, Pooling, "
            "any number of Dense, and Normalize, in this order"
        )
    pooling = _pooling(folder, modules[1].path) if modules else PoolingKind.MEAN
    configs = tuple(map_.config for map_, _ in dense)
    size = configs[-1].size if configs else folder.config.positive("hidden_size")
    found = (name for name in LIMITS_FILES if folder.read_json(name) is not None)
    limits = _fields(folder, next(found, LIMITS_FILES[0]))
    check_supported(limits, do_lower_case=(False,))
    return Head(
        config=HeadConfig(
            kind=HeadKind.EMBEDDING, pooling=pooling, normalize=normalize, dense=configs
        ),
        tasks=(Task.EMBED, Task.RERANK),
        table=tuple(e for index, (map_, _) in enumerate(dense) for e in map_.table(index)),
        weights={name: weight for _, weights in dense for name, weight in weights.items()},
        embedding=_embedding(folder, pooling, normalize, size),
        max_input_tokens=limits.optional_integer("max_seq_length"),
    )


def is_embedder(folder: HuggingFaceFolder) -> bool:
    """Whether sentence-transformers saved ``folder`` as an embedding model."""
    return any(module.kind == "Pooling" for module in _modules(folder))


def _modules(folder: HuggingFaceFolder) -> list[_Module]:
    value = folder.read_json(MODULES_FILE)
    rows = value if isinstance(value, list) else []
    fields = [Fields(row if isinstance(row, dict) else {}, MODULES_FILE) for row in rows]
    return [_Module(row.text("type").rpartition(".")[2], row.text("path", "")) for row in fields]


def _fields(folder: HuggingFaceFolder, name: str) -> Fields:
    value = folder.read_json(name)
    if value is not None and not isinstance(value, dict):
        raise SourceError(f"{name}: not a JSON object")
    return Fields(value or {}, name)


def _module_config(folder: HuggingFaceFolder, path: str) -> Fields:
    """The configuration of the module in the subfolder ``path``."""
    file = f"{path}/config.json"
    if PurePosixPath(path).name != path or folder.read_json(file) is None:
        raise SourceError(f"{file}: missing, or not a JSON object")
    return _fields(folder, file)


def _pooling(folder: HuggingFaceFolder, path: str) -> PoolingKind:
    """The one pooling that the configuration in ``path`` enables."""
    config = _module_config(folder, path)
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


def _dense(folder: HuggingFaceFolder, path: str) -> tuple[NamedDense, Mapping[str, Tensor]]:
    """A dense layer, and its weights by the names in its table."""
    config = _module_config(folder, path)
    check_supported(
        config,
        use_residual=(False,),
        module_input_name=("sentence_embedding",),
        module_output_name=("sentence_embedding",),
    )
    name = config.text("activation_function", "torch.nn.modules.activation.Tanh")
    activation = lookup(
        ACTIVATIONS, name.rpartition(".")[2], f"{config.origin}: activation_function"
    )
    dense = NamedDense(
        linear=f"{path}.linear",
        config=DenseConfig(
            size=config.positive("out_features"),
            activation=activation,
            bias=config.flag("bias", True),
        ),
    )
    weights = folder.read_weights(path)
    return dense, {f"{path}.{name}": weights[name] for name in weights}


def _embedding(
    folder: HuggingFaceFolder, pooling: PoolingKind, normalize: bool, size: int
) -> Embedding:
    fields = _fields(folder, PROMPTS_FILE)
    prompts = fields.fields("prompts")
    named = {name: prompts.text(name) for name in prompts}
    default = fields.text("default_prompt_name", "") or None
    if default is not None and default not in named:
        raise SourceError(f"{PROMPTS_FILE}: default_prompt_name {default!r} is not in prompts")
    truncations = folder.config.integers("matryoshka_dimensions")
    if any(not 0 < dimension <= size for dimension in truncations):
        raise SourceError(f"{folder.config.origin}: matryoshka_dimensions are not in 1 to {size}")
    return Embedding(
        size=size,
        pooling=pooling,
        is_normalized=normalize,
        truncations=truncations,
        prompts=named,
        default_prompt=default,
    )
