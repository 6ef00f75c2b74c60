"""EuroBERT (Boizard et al. 2025), as ``transformers`` saves it: Llama's layers in an encoder."""

import dataclasses

from export.checkpoint import Checkpoint
from export.importers.activations import activation
from export.importers.encoders import assemble
from export.importers.gated_decoder import DecoderSizes
from export.importers.gated_encoder import gated_encoder
from export.importers.heads import (
    Head,
    HeadReader,
    NamedDense,
    masked_language_model,
    sequence_classifier,
    token_classifier,
)
from export.importers.rotary import rotary
from export.importers.sentence_transformers import embedder
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import lookup
from model.config import Activation, DenseConfig, PoolingKind


def import_eurobert(folder: HuggingFaceFolder) -> Checkpoint:
    """The model in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = Fields({"tie_word_embeddings": False, **folder.config}, folder.config.origin)
    folder = dataclasses.replace(folder, config=config)
    sizes = DecoderSizes.of(config, epsilon=1e-5)
    positions = rotary(config, sizes.head_size)
    has_bias = config.flag("attention_bias", False)
    layer = sizes.layer(
        sizes.attention(input_bias=has_bias, output_bias=has_bias, rotary=positions.config),
        activation=activation(config, "hidden_act", "silu"),
        bias=config.flag("mlp_bias", False),
    )
    model = sizes.model((layer,) * sizes.num_layers, positions.max_positions)
    return assemble(folder, gated_encoder("model", model), HEADS, "EuroBertModel")


# "late" pools the tokens' logits, which are linear in the pooled vectors.
POOLINGS = {"bos": PoolingKind.CLS, "mean": PoolingKind.MEAN, "late": PoolingKind.MEAN}


def _sequence_classifier(folder: HuggingFaceFolder) -> Head:
    config = folder.config
    # The first folders use another name for the field.
    name = config.text("classifier_pooling", config.text("clf_pooling", "late"))
    dense = DenseConfig(size=config.positive("hidden_size"), activation=Activation.GELU)
    return sequence_classifier(
        folder,
        NamedDense(linear="dense", config=dense),
        pooling=lookup(POOLINGS, name, f"{config.origin}: classifier_pooling"),
        pools_last=name == "late",
    )


def _masked(folder: HuggingFaceFolder) -> Head:
    bias = "lm_head.bias" if folder.config.flag("mlp_bias", False) else None
    return masked_language_model(folder, decoder="lm_head", bias=bias)


HEADS: dict[str, HeadReader] = {
    "EuroBertModel": embedder,
    "EuroBertForSequenceClassification": _sequence_classifier,
    "EuroBertForTokenClassification": token_classifier,
    "EuroBertForMaskedLM": _masked,
}
