"""BERT (Devlin et al. 2018), as ``transformers`` saves it: for embeddings or as a classifier.

A sentence-transformers folder is one of these with a pooling beside it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath

from export.checkpoint import Checkpoint, check_weights
from export.errors import SourceError, UnsupportedError
from export.importers.renaming import (
    Rename,
    per_layer,
    prefixed,
    rename,
    stack_rows,
    transpose,
)
from export.importers.samples import ENGLISH_TEXTS
from export.importers.support import MAX_LAYERS, bundle_name, divide_heads
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported, lookup
from model.bundle import SpecialTokens, Task
from model.config import (
    Activation,
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    HeadConfig,
    HeadKind,
    Kind,
    LayerConfig,
    ModelConfig,
    NormConfig,
    NormKind,
    NormOrder,
    PoolingKind,
    PositionConfig,
    PositionKind,
    StackConfig,
)

# What transformers has where a configuration does not say.
DEFAULT_LABELS = ("LABEL_0", "LABEL_1")
POOLINGS = {
    "pooling_mode_cls_token": PoolingKind.CLS,
    "pooling_mode_mean_tokens": PoolingKind.MEAN,
}
ACTIVATIONS = {"gelu": Activation.GELU, "relu": Activation.RELU}

EMBEDDINGS = (
    Rename("embedding.tokens.weight", ("embeddings.word_embeddings.weight",)),
    Rename("embedding.positions.weight", ("embeddings.position_embeddings.weight",)),
    Rename("embedding.segments.weight", ("embeddings.token_type_embeddings.weight",)),
    Rename("embedding.norm.weight", ("embeddings.LayerNorm.weight",)),
    Rename("embedding.norm.bias", ("embeddings.LayerNorm.bias",)),
)

_OURS, _THEIRS = "encoder.layers.{n}", "encoder.layer.{n}"
_SELF = f"{_THEIRS}.attention.self"
LAYER = (
    Rename(
        f"{_OURS}.mixer.qkv.weight",
        (f"{_SELF}.query.weight", f"{_SELF}.key.weight", f"{_SELF}.value.weight"),
        transpose,
    ),
    Rename(
        f"{_OURS}.mixer.qkv.bias",
        (f"{_SELF}.query.bias", f"{_SELF}.key.bias", f"{_SELF}.value.bias"),
        stack_rows,
    ),
    Rename(
        f"{_OURS}.mixer.output.weight", (f"{_THEIRS}.attention.output.dense.weight",), transpose
    ),
    Rename(f"{_OURS}.mixer.output.bias", (f"{_THEIRS}.attention.output.dense.bias",)),
    Rename(f"{_OURS}.mixer_norm.weight", (f"{_THEIRS}.attention.output.LayerNorm.weight",)),
    Rename(f"{_OURS}.mixer_norm.bias", (f"{_THEIRS}.attention.output.LayerNorm.bias",)),
    Rename(
        f"{_OURS}.feed_forward.input.weight", (f"{_THEIRS}.intermediate.dense.weight",), transpose
    ),
    Rename(f"{_OURS}.feed_forward.input.bias", (f"{_THEIRS}.intermediate.dense.bias",)),
    Rename(f"{_OURS}.feed_forward.output.weight", (f"{_THEIRS}.output.dense.weight",), transpose),
    Rename(f"{_OURS}.feed_forward.output.bias", (f"{_THEIRS}.output.dense.bias",)),
    Rename(f"{_OURS}.feed_forward_norm.weight", (f"{_THEIRS}.output.LayerNorm.weight",)),
    Rename(f"{_OURS}.feed_forward_norm.bias", (f"{_THEIRS}.output.LayerNorm.bias",)),
)

POOLER = (
    Rename("head.dense.weight", ("pooler.dense.weight",), transpose),
    Rename("head.dense.bias", ("pooler.dense.bias",)),
)
CLASSIFIER = (
    Rename("head.output.weight", ("classifier.weight",), transpose),
    Rename("head.output.bias", ("classifier.bias",)),
)

# Buffers of old transformers versions, and BertModel's pooler, which no embedding uses.
BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")
UNUSED_POOLER = ("pooler.dense.weight", "pooler.dense.bias")


@dataclass(frozen=True, kw_only=True)
class _Head:
    """What differs between the classes that share BERT's encoder."""

    config: HeadConfig
    task: Task
    trunk: tuple[Rename, ...] = ()  # weights of BertModel itself
    table: tuple[Rename, ...] = ()
    ignored: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()


def import_bert(folder: HuggingFaceFolder) -> Checkpoint:
    """The model in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: as their names say.
    """
    config = folder.config
    architecture = next(iter(config.texts("architectures")), "BertModel")
    head = lookup(HEADS, architecture, f"{config.origin}: architectures")(folder)
    encoder = _encoder(config)
    model = ModelConfig(
        kind=Kind.ENCODER,
        vocabulary_size=config.positive("vocab_size"),
        hidden_size=config.positive("hidden_size"),
        position=PositionConfig(
            kind=PositionKind.LEARNED, max_positions=config.positive("max_position_embeddings", 512)
        ),
        embedding=EmbeddingConfig(
            norm=_norm(config), num_segments=config.positive("type_vocab_size", 2)
        ),
        encoder=encoder,
        head=head.config,
    )
    # Classes with a head of their own hold BertModel as their member "bert".
    prefix = "bert." if any(name.startswith("bert.") for name in folder.weights) else ""
    trunk = [*EMBEDDINGS, *per_layer(LAYER, len(encoder.layers)), *head.trunk]
    weights = rename(
        [*prefixed(trunk, prefix), *head.table],
        folder.weights,
        ignored=[prefix + name for name in (*BUFFERS, *head.ignored)],
    )
    check_weights(model, weights)
    return Checkpoint(
        config=model,
        weights=weights,
        tokenizer_json=folder.tokenizer_json,
        architecture=architecture,
        tasks=(head.task,),
        special_tokens=SpecialTokens(pad=config.integer("pad_token_id", 0)),
        license=folder.license,
        name=bundle_name(folder.path),
        labels=head.labels,
        sample_inputs=ENGLISH_TEXTS,
    )


def _encoder(config: Fields) -> StackConfig:
    check_supported(
        config,
        position_embedding_type=("absolute",),
        is_decoder=(False,),
        add_cross_attention=(False,),
    )
    hidden_size = config.positive("hidden_size")
    num_heads = config.positive("num_attention_heads")
    activation = config.text("hidden_act", "gelu")
    num_layers = config.positive("num_hidden_layers", maximum=MAX_LAYERS)
    layer = LayerConfig(
        attention=AttentionConfig(
            num_heads=num_heads,
            num_kv_heads=num_heads,
            head_size=divide_heads(config.origin, hidden_size, num_heads),
            input_bias=True,
            output_bias=True,
        ),
        feed_forward=FeedForwardConfig(
            inner_size=config.positive("intermediate_size"),
            activation=lookup(ACTIVATIONS, activation, f"{config.origin}: hidden_act"),
            gated=False,
            bias=True,
        ),
        norm=_norm(config),
        norm_order=NormOrder.POST,
    )
    return StackConfig(layers=(layer,) * num_layers)


def _norm(config: Fields) -> NormConfig:
    return NormConfig(kind=NormKind.LAYER, epsilon=config.number("layer_norm_eps", 1e-12))


def _embedding_head(folder: HuggingFaceFolder) -> _Head:
    """Pooling and normalisation as sentence-transformers' files say; without them, the mean."""
    pooling, normalize = PoolingKind.MEAN, False
    modules = folder.read_json("modules.json")
    for module in modules if isinstance(modules, list) else []:
        fields = Fields(module if isinstance(module, dict) else {}, "modules.json")
        kind = fields.text("type").rpartition(".")[2]
        if kind == "Pooling":
            pooling = _pooling(folder, fields.text("path"))
        elif kind == "Normalize":
            normalize = True
        elif kind != "Transformer":
            raise UnsupportedError(
                f"modules.json: a module {kind}; Transformer, Pooling and Normalize are supported"
            )
    config = HeadConfig(kind=HeadKind.EMBEDDING, pooling=pooling, normalize=normalize)
    return _Head(config=config, task=Task.EMBED, ignored=UNUSED_POOLER)


def _pooling(folder: HuggingFaceFolder, path: str) -> PoolingKind:
    """The one pooling that ``path``'s configuration switches on."""
    file = f"{path}/config.json"
    value = folder.read_json(file) if PurePosixPath(path).name == path else None
    if not isinstance(value, dict):
        raise SourceError(f"{file}: missing, or not a JSON object")
    chosen = [name for name in value if name.startswith("pooling_mode_") and value[name] is True]
    if len(chosen) != 1:
        raise UnsupportedError(f"{file}: one pooling is supported, not {chosen}")
    return lookup(POOLINGS, chosen[0], file)


def _classification_head(folder: HuggingFaceFolder) -> _Head:
    config = folder.config
    check_supported(config, problem_type=("single_label_classification",))
    names = config.fields("id2label")
    labels = tuple(names.text(str(index)) for index in range(len(names))) or DEFAULT_LABELS
    if len(labels) < 2:
        raise UnsupportedError(
            f"{config.origin}: id2label has {len(labels)} labels; a class needs 2"
        )
    head = HeadConfig(
        kind=HeadKind.CLASSIFICATION,
        bias=True,
        pooling=PoolingKind.CLS,
        dense_tanh=True,
        num_labels=len(labels),
    )
    return _Head(config=head, task=Task.CLASSIFY, trunk=POOLER, table=CLASSIFIER, labels=labels)


HEADS: dict[str, Callable[[HuggingFaceFolder], _Head]] = {
    "BertModel": _embedding_head,
    "BertForSequenceClassification": _classification_head,
}
