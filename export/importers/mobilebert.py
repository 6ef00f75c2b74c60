"""MobileBERT (Sun et al. 2020), as ``transformers`` saves it: deep and thin, for phones.

Two linear maps with nothing between them become one: a bottleneck with the affine map after it, and
that of queries and keys with their matrices.
"""

import torch
from torch import Tensor

from export.checkpoint import Checkpoint
from export.errors import SourceError
from export.importers.activations import activation
from export.importers.bert import NEXT_SENTENCE
from export.importers.bert_tables import (
    EMBEDDING_NORM,
    TOKENS,
    UNUSED,
    embeddings,
    layer_norm,
    learned_positions,
    multi_head,
    num_layers,
    num_segments,
    two_maps,
)
from export.importers.encoders import Body, assemble
from export.importers.head_tables import always, classifier, five_classes
from export.importers.heads import Head, HeadReader
from export.importers.renaming import Rename, affine, linear, per_layer
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from model.bottleneck_config import BottleneckConfig
from model.bundle import Task
from model.config import (
    Activation,
    DenseConfig,
    EmbeddingConfig,
    HeadConfig,
    HeadKind,
    LayerConfig,
    NormConfig,
    NormKind,
    NormOrder,
    StackConfig,
)

BASE = "mobilebert"
MAX_FEED_FORWARDS = 64
_LAYER = "encoder.layer.{n}"
_QUERY, _KEY, _VALUE = (f"{_LAYER}.attention.self.{name}" for name in ("query", "key", "value"))
_AFFINE = NormConfig(kind=NormKind.AFFINE, epsilon=0.0)


def import_mobilebert(folder: HuggingFaceFolder) -> Checkpoint:
    """The model in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    check_supported(
        config,
        use_bottleneck=(True,),
        use_bottleneck_attention=(False,),
        key_query_shared_bottleneck=(True,),
        normalization_type=("no_norm",),
        trigram_input=(True,),
        classifier_activation=(True,),
        tie_word_embeddings=(True,),
    )
    size = config.positive("true_hidden_size", 128)
    if config.positive("intra_bottleneck_size", 128) != size:
        raise SourceError(f"{config.origin}: intra_bottleneck_size is not true_hidden_size, {size}")
    return assemble(folder, _body(config, size), HEADS, "MobileBertModel")


def _body(config: Fields, size: int) -> Body:
    number = config.positive("num_feedforward_networks", 4, maximum=MAX_FEED_FORWARDS)
    sized = config.with_defaults(true_hidden_size=size)
    layer = LayerConfig(
        attention=multi_head(sized, size_field="true_hidden_size"),
        feed_forward=two_maps(config, activation(config, "hidden_act", "relu")),
        bottleneck=BottleneckConfig(size=size, num_feed_forwards=number),
        norm=_AFFINE,
        norm_order=NormOrder.POST,
    )
    return Body(
        base=BASE,
        hidden_size=config.positive("hidden_size"),
        position=learned_positions(config),
        embedding=EmbeddingConfig(
            norm=_AFFINE,
            num_segments=num_segments(config),
            trigram_size=config.positive("embedding_size", 128),
        ),
        encoder=StackConfig(layers=(layer,) * num_layers(config)),
        table=(
            *embeddings(config),
            *EMBEDDING_NORM,
            *linear("embedding.trigrams.map", "embeddings.embedding_transformation", bias=True),
            *per_layer(_layer_table(number), num_layers(config)),
        ),
        ignored=UNUSED,
    )


def _layer_table(num_feed_forwards: int) -> list[Rename]:
    target = "encoder.layers.{n}"
    table = [
        *_narrow(f"{target}.narrow", f"{_LAYER}.bottleneck.input"),
        *_qkv(f"{target}.mixer.qkv", f"{_LAYER}.bottleneck.attention"),
        *linear(f"{target}.mixer.output", f"{_LAYER}.attention.output.dense", bias=True),
        *affine(f"{target}.mixer_norm", f"{_LAYER}.attention.output.LayerNorm"),
        *linear(f"{target}.widen", f"{_LAYER}.output.bottleneck.dense", bias=True),
        *affine(f"{target}.norm", f"{_LAYER}.output.bottleneck.LayerNorm"),
    ]
    names = [f"{_LAYER}.ffn.{index}" for index in range(num_feed_forwards - 1)]
    for index, name in enumerate([*names, _LAYER]):
        part = f"{target}.feed_forwards.{index}"
        table += linear(f"{part}.input", f"{name}.intermediate.dense", bias=True)
        table += linear(f"{part}.output", f"{name}.output.dense", bias=True)
        table += affine(f"{target}.feed_forward_norms.{index}", f"{name}.output.LayerNorm")
    return table


def _narrow(target: str, source: str) -> tuple[Rename, Rename]:
    """A bottleneck and the affine map after it, as one linear map."""
    weight, scale, shift = _parts(source)
    bias = f"{source}.dense.bias"

    def with_scale(weight: Tensor, scale: Tensor) -> Tensor:
        return (scale[:, None] * weight).T

    def with_shift(bias: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        return scale * bias + shift

    return (
        Rename(f"{target}.weight", (weight, scale), with_scale),
        Rename(f"{target}.bias", (bias, scale, shift), with_shift),
    )


def _qkv(target: str, source: str) -> tuple[Rename, Rename]:
    """Queries and keys of what a bottleneck returns, and values of the layer's input."""
    weight, scale, shift = _parts(source)
    bias = f"{source}.dense.bias"

    def weights(query: Tensor, key: Tensor, value: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
        narrow = scale.double()[:, None] * weight.double()
        rows = [query.double() @ narrow, key.double() @ narrow, value.double()]
        return torch.cat(rows).T.float()

    def biases(*given: Tensor) -> Tensor:
        query, query_bias, key, key_bias, value_bias, bias, scale, shift = (
            each.double() for each in given
        )
        narrow = scale * bias + shift
        rows = [query @ narrow + query_bias, key @ narrow + key_bias, value_bias]
        return torch.cat(rows).float()

    of_queries = (f"{_QUERY}.weight", f"{_QUERY}.bias")
    of_keys = (f"{_KEY}.weight", f"{_KEY}.bias")
    matrices = (of_queries[0], of_keys[0], f"{_VALUE}.weight")
    return (
        Rename(f"{target}.weight", (*matrices, weight, scale), weights),
        Rename(
            f"{target}.bias",
            (*of_queries, *of_keys, f"{_VALUE}.bias", bias, scale, shift),
            biases,
        ),
    )


def _parts(source: str) -> tuple[str, str, str]:
    """The weight of a bottleneck, and the scale and shift of the affine map after it."""
    norm = f"{source}.LayerNorm"
    return f"{source}.dense.weight", f"{norm}.weight", f"{norm}.bias"


def _masked(folder: HuggingFaceFolder) -> Head:
    """A dense layer and a norm; then the token table, beside a table of its own."""
    config, start = folder.config, "cls.predictions"
    dense = DenseConfig(
        size=config.positive("hidden_size"),
        activation=activation(config, "hidden_act", "relu"),
        norm=layer_norm(config),
    )
    tokens = f"{BASE}.{TOKENS.sources[0]}"
    return Head(
        config=HeadConfig(kind=HeadKind.LANGUAGE_MODEL, bias=True, dense=(dense,)),
        tasks=(Task.FILL_MASK,),
        table=(
            *linear("head.dense.0.linear", f"{start}.transform.dense", bias=True),
            *affine("head.dense.0.norm", f"{start}.transform.LayerNorm"),
            Rename(
                "head.output.weight",
                (tokens, f"{start}.dense.weight"),
                lambda tokens, own: torch.cat([tokens.T, own]),
            ),
            Rename("head.output.bias", (f"{start}.bias",)),
        ),
        copies={
            f"{start}.decoder.weight": TOKENS.target,
            f"{start}.decoder.bias": "head.output.bias",
        },
        ignored=NEXT_SENTENCE,
    )


HEADS: dict[str, HeadReader] = {
    **five_classes(
        "MobileBert",
        classifier=classifier(f"{BASE}.pooler.dense", always(Activation.TANH)),
        masked=_masked,
    ),
    "MobileBertForPreTraining": _masked,
}
