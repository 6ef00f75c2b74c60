"""XLNet (Yang et al. 2019) as an encoder, without memory of earlier texts.

Attention of Transformer-XL (Dai et al. 2019): scores of contents, of distances, and of tokens in
other segments. Those of a token's own segment are equal, so a softmax does not need them.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from export.checkpoint import Checkpoint
from export.errors import UnsupportedError
from export.importers.activations import activation
from export.importers.bert_tables import layer_norm
from export.importers.encoders import Body, assemble
from export.importers.heads import (
    Head,
    HeadReader,
    NamedDense,
    question_answerer,
    sequence_classifier,
    token_classifier,
)
from export.importers.renaming import Rename, affine, linear, per_layer
from export.importers.sentence_transformers import embedder
from export.importers.support import MAX_LAYERS, divide_heads
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported, lookup
from export.tokenization.hugging_face import TOKENIZER_FILE
from model.config import (
    Activation,
    AttentionConfig,
    DenseConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    LayerConfig,
    NormOrder,
    PoolingKind,
    StackConfig,
)
from model.position_config import (
    DisentangledConfig,
    DisentangledTerm,
    DistanceKind,
    PositionConfig,
    PositionKind,
)

MAX_POSITIONS = 1024  # of the table of distances; training used 512
NUM_SEGMENTS = 3  # two texts and the class token
_LAYER, _TARGET = "layer.{n}", "encoder.layers.{n}"
_ATTENTION = f"{_LAYER}.rel_attn"
_OF_CONTENT, _OF_POSITIONS, _OF_SEGMENTS = (f"{_ATTENTION}.r_{kind}_bias" for kind in "wrs")
LANGUAGE_MODEL = ("lm_loss.weight", "lm_loss.bias")


def import_xlnet(folder: HuggingFaceFolder) -> Checkpoint:
    """The model in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    if not (folder.path / TOKENIZER_FILE).is_file():
        raise UnsupportedError(
            f"{folder.path}: XLNet's SentencePiece model alone is not supported; supported: "
            f"{TOKENIZER_FILE}, which save_pretrained of its tokenizer writes"
        )
    config = folder.config.with_names(vocab_size="n_token", hidden_size="d_model")
    check_supported(config, attn_type=("bi",), bi_data=(False,))
    number = config.positive("n_layer", 24, maximum=MAX_LAYERS)
    norm = layer_norm(config)
    layer = LayerConfig(
        attention=_attention(config),
        feed_forward=FeedForwardConfig(
            inner_size=config.positive("d_inner", 4096),
            activation=activation(config, "ff_activation", "gelu"),
            gated=False,
            bias=True,
        ),
        norm=norm,
        norm_order=NormOrder.POST,
    )
    body = Body(
        base="transformer",
        hidden_size=config.positive("hidden_size"),
        position=PositionConfig(kind=PositionKind.NONE, max_positions=MAX_POSITIONS),
        embedding=EmbeddingConfig(),
        encoder=StackConfig(layers=(layer,) * number, num_segments=NUM_SEGMENTS),
        table=(
            Rename("embedding.tokens.weight", ("word_embedding.weight",)),
            *per_layer(_layer_table(config), number),
        ),
        ignored=("mask_emb",),
    )
    return assemble(replace(folder, config=config), body, HEADS, "XLNetModel")


def _attention(config: Fields) -> AttentionConfig:
    num_heads = config.positive("n_head", 16)
    size = divide_heads(config.origin, config.positive("hidden_size"), num_heads)
    return AttentionConfig(
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_size=size,
        input_bias=True,
        output_bias=False,
        disentangled=DisentangledConfig(
            kind=DistanceKind.CLIPPED,
            span=MAX_POSITIONS,
            max_distance=MAX_POSITIONS,
            terms=(DisentangledTerm.CONTENT_TO_POSITION,),
            has_query_bias=True,
            has_segments=True,
        ),
    )


def _layer_table(config: Fields) -> list[Rename]:
    query, key, value, output, distances = (f"{_ATTENTION}.{name}" for name in "qkvor")
    bias, segments = f"{_TARGET}.mixer.content_bias", f"{_ATTENTION}.seg_embed"
    term = DisentangledTerm.CONTENT_TO_POSITION
    return [
        Rename(f"{_TARGET}.mixer.qkv.weight", (query, key, value), _packed),
        Rename(f"{_TARGET}.mixer.qkv.bias", (_OF_CONTENT,), _query_bias),
        Rename(f"{_TARGET}.mixer.output.weight", (output,), lambda weight: weight.flatten(1).T),
        *affine(f"{_TARGET}.mixer_norm", f"{_ATTENTION}.layer_norm"),
        Rename(f"{bias}.{term}", (distances,), _table_of(config)),
        Rename(f"{bias}.query_bias", (_OF_POSITIONS, _OF_CONTENT), _difference),
        Rename(f"{bias}.segment_key", (segments,), lambda both: _difference(both[1], both[0])),
        Rename(f"{bias}.segment_bias", (_OF_SEGMENTS, _OF_CONTENT, segments), _segment_bias),
        *linear(f"{_TARGET}.feed_forward.input", f"{_LAYER}.ff.layer_1", bias=True),
        *linear(f"{_TARGET}.feed_forward.output", f"{_LAYER}.ff.layer_2", bias=True),
        *affine(f"{_TARGET}.feed_forward_norm", f"{_LAYER}.ff.layer_norm"),
    ]


def _packed(*weights: Tensor) -> Tensor:
    """Queries, keys and values of weights ``[hidden, heads, size]``."""
    return torch.cat([weight.flatten(1) for weight in weights], 1)


def _query_bias(bias: Tensor) -> Tensor:
    """``bias [heads, size]`` for queries; keys and values have none."""
    return torch.cat([bias.flatten(), torch.zeros(2 * bias.numel())])


def _difference(first: Tensor, second: Tensor) -> Tensor:
    return (first - second).flatten()


def _segment_bias(bias: Tensor, content: Tensor, segments: Tensor) -> Tensor:
    """``[heads]``: the score of the difference of both biases with another segment."""
    return ((bias - content) * (segments[1] - segments[0])).sum(-1)


def _table_of(config: Fields) -> Callable[[Tensor], Tensor]:
    """Projects the sinusoids of distances (Dai et al. 2019, section 3.3) to keys.

    The arguments of sines are computed in fp32, as in ``transformers``.
    """
    size = config.positive("hidden_size")
    limit = config.number("clamp_len", -1)

    def table(weight: Tensor) -> Tensor:
        frequencies = 1 / torch.pow(10_000, torch.arange(0, size, 2.0) / size)
        distances = torch.arange(-MAX_POSITIONS, MAX_POSITIONS).float()
        if limit > 0:
            distances = distances.clamp(-limit, limit)
        angles = distances[:, None] * frequencies
        return torch.cat([angles.sin(), angles.cos()], 1) @ weight.flatten(1)

    return table


def _classifier(folder: HuggingFaceFolder) -> Head:
    """A dense layer on one vector of the text, then the labels."""
    config = folder.config
    check_supported(
        config,
        summary_use_proj=(True,),
        summary_proj_to_labels=(None, False),
        summary_activation=("tanh",),
    )
    kind = config.text("summary_type", "last")
    dense = DenseConfig(size=config.positive("hidden_size"), activation=Activation.TANH)
    return sequence_classifier(
        folder,
        NamedDense(linear="sequence_summary.summary", config=dense),
        output="logits_proj",
        pooling=lookup(POOLING, kind, f"{config.origin}: summary_type"),
    )


def _language_model(folder: HuggingFaceFolder) -> Head:
    """The published pretraining model, without its head."""
    return replace(embedder(folder), ignored=LANGUAGE_MODEL)


POOLING = {
    "last": PoolingKind.LAST,
    "first": PoolingKind.CLS,
    "mean": PoolingKind.MEAN,
}
HEADS: dict[str, HeadReader] = {
    "XLNetModel": embedder,
    "XLNetLMHeadModel": _language_model,
    "XLNetForSequenceClassification": _classifier,
    "XLNetForTokenClassification": token_classifier,
    "XLNetForQuestionAnsweringSimple": question_answerer,
}
