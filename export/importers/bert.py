"""BERT (Devlin et al. 2018), as ``transformers`` saves it, with any of its heads."""

from export.checkpoint import Checkpoint
from export.importers.activations import activation
from export.importers.encoders import Body, assemble
from export.importers.heads import (
    Head,
    HeadReader,
    NamedDense,
    masked_language_model,
    question_answerer,
    sequence_classifier,
    token_classifier,
)
from export.importers.renaming import Rename, affine, linear, per_layer
from export.importers.sentence_transformers import embedder
from export.importers.support import MAX_LAYERS, divide_heads
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from model.config import (
    Activation,
    AttentionConfig,
    DenseConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    LayerConfig,
    NormConfig,
    NormKind,
    NormOrder,
    PositionConfig,
    PositionKind,
    StackConfig,
)

EMBEDDINGS = (
    Rename("embedding.tokens.weight", ("embeddings.word_embeddings.weight",)),
    Rename("embedding.positions.weight", ("embeddings.position_embeddings.weight",)),
    Rename("embedding.segments.weight", ("embeddings.token_type_embeddings.weight",)),
    *affine("embedding.norm", "embeddings.LayerNorm"),
)

_OURS, _THEIRS = "encoder.layers.{n}", "encoder.layer.{n}"
_QKV = tuple(f"{_THEIRS}.attention.self.{name}" for name in ("query", "key", "value"))
LAYER = (
    *linear(f"{_OURS}.mixer.qkv", *_QKV, bias=True),
    *linear(f"{_OURS}.mixer.output", f"{_THEIRS}.attention.output.dense", bias=True),
    *affine(f"{_OURS}.mixer_norm", f"{_THEIRS}.attention.output.LayerNorm"),
    *linear(f"{_OURS}.feed_forward.input", f"{_THEIRS}.intermediate.dense", bias=True),
    *linear(f"{_OURS}.feed_forward.output", f"{_THEIRS}.output.dense", bias=True),
    *affine(f"{_OURS}.feed_forward_norm", f"{_THEIRS}.output.LayerNorm"),
)

# Buffers of old transformers versions, and BertModel's pooler where no head uses it.
UNUSED = (
    "embeddings.position_ids",
    "embeddings.token_type_ids",
    "pooler.dense.weight",
    "pooler.dense.bias",
)
# Next-sentence prediction, beside a masked language model.
NEXT_SENTENCE = ("cls.seq_relationship.weight", "cls.seq_relationship.bias")


def import_bert(folder: HuggingFaceFolder) -> Checkpoint:
    """The model in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: as their names say.
    """
    config = folder.config
    encoder = _encoder(config)
    body = Body(
        base="bert",
        hidden_size=config.positive("hidden_size"),
        position=PositionConfig(
            kind=PositionKind.LEARNED, max_positions=config.positive("max_position_embeddings", 512)
        ),
        embedding=EmbeddingConfig(
            norm=_norm(config), num_segments=config.positive("type_vocab_size", 2)
        ),
        encoder=encoder,
        table=(*EMBEDDINGS, *per_layer(LAYER, len(encoder.layers))),
        ignored=UNUSED,
    )
    return assemble(folder, body, HEADS, "BertModel")


def _encoder(config: Fields) -> StackConfig:
    check_supported(
        config,
        position_embedding_type=("absolute",),
        is_decoder=(False,),
        add_cross_attention=(False,),
    )
    hidden_size = config.positive("hidden_size")
    num_heads = config.positive("num_attention_heads")
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
            activation=activation(config, "hidden_act", "gelu"),
            gated=False,
            bias=True,
        ),
        norm=_norm(config),
        norm_order=NormOrder.POST,
    )
    return StackConfig(layers=(layer,) * num_layers)


def _norm(config: Fields) -> NormConfig:
    return NormConfig(kind=NormKind.LAYER, epsilon=config.number("layer_norm_eps", 1e-12))


def _sequence_classifier(folder: HuggingFaceFolder) -> Head:
    size = folder.config.positive("hidden_size")
    pooler = DenseConfig(size=size, activation=Activation.TANH)
    return sequence_classifier(folder, NamedDense(linear="bert.pooler.dense", config=pooler))


def _masked_language_model(folder: HuggingFaceFolder) -> Head:
    config, start = folder.config, "cls.predictions"
    transform = DenseConfig(
        size=config.positive("hidden_size"),
        activation=activation(config, "hidden_act", "gelu"),
        norm=_norm(config),
    )
    return masked_language_model(
        folder,
        NamedDense(
            linear=f"{start}.transform.dense",
            norm=f"{start}.transform.LayerNorm",
            config=transform,
        ),
        decoder=f"{start}.decoder",
        bias=f"{start}.bias",
        ignored=NEXT_SENTENCE,
    )


HEADS: dict[str, HeadReader] = {
    "BertModel": embedder,
    "BertForSequenceClassification": _sequence_classifier,
    "BertForTokenClassification": token_classifier,
    "BertForQuestionAnswering": question_answerer,
    "BertForMaskedLM": _masked_language_model,
    "BertForPreTraining": _masked_language_model,
}
