"""ESM Cambrian (ESM Team 2024, https://www.evolutionaryscale.ai/blog/esm-cambrian).

Encoders of protein sequences, as ``transformers`` saves them: EuroBERT's layers with layer norms,
norms over all queries and all keys of a token, and sub-layers divided by a constant.
"""

import dataclasses
import math

import msgspec

from export.checkpoint import Checkpoint
from export.importers.activations import activation
from export.importers.encoders import assemble
from export.importers.esm import with_proteins
from export.importers.gated_decoder import DecoderSizes
from export.importers.gated_encoder import gated_encoder
from export.importers.head_tables import FAIRSEQ_CLASSIFIER
from export.importers.heads import (
    Head,
    HeadReader,
    NamedDense,
    masked_language_model,
    token_classifier,
)
from export.importers.renaming import scaled
from export.importers.rotary import rotary
from export.importers.sentence_transformers import embedder
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from model.config import (
    Activation,
    DenseConfig,
    HeadNormScope,
    NormConfig,
    NormKind,
    StackConfig,
)

NORM = NormConfig(kind=NormKind.LAYER, epsilon=1e-5)
NORM_WITHOUT_BIAS = msgspec.structs.replace(NORM, bias=False)
# The depth of the model whose sub-layers are not divided.
UNSCALED_LAYERS = 36


def import_esmc(folder: HuggingFaceFolder) -> Checkpoint:
    """The model in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    check_supported(config, num_key_value_heads=(config.positive("num_attention_heads"),))
    config = Fields({**config, "tie_word_embeddings": False}, config.origin)
    folder = dataclasses.replace(folder, config=config)
    sizes = DecoderSizes.of(config, norm=NORM)
    positions = rotary(config, sizes.head_size)
    has_bias = config.flag("attention_bias", False)
    attention = sizes.attention(
        input_bias=has_bias,
        output_bias=has_bias,
        rotary=positions.config,
        head_norm=NORM_WITHOUT_BIAS,
        head_norm_scope=HeadNormScope.ALL_HEADS,
    )
    layer = sizes.layer(
        attention,
        activation=activation(config, "hidden_act", "silu"),
        bias=config.flag("mlp_bias", False),
    )
    stack = StackConfig(layers=(layer,) * sizes.num_layers, final_norm=NORM_WITHOUT_BIAS)
    model = sizes.model(stack.layers, positions.max_positions)
    model = msgspec.structs.replace(model, decoder=stack)
    scale = 1 / math.sqrt(sizes.num_layers / UNSCALED_LAYERS)
    body = gated_encoder("esmc", model, output=scaled(scale))
    return with_proteins(folder, assemble(folder, body, HEADS, "EsmcModel"))


def _masked(folder: HuggingFaceFolder) -> Head:
    dense = DenseConfig(
        size=folder.config.positive("hidden_size"), activation=Activation.GELU, norm=NORM
    )
    named = NamedDense(linear="lm_head.dense", norm="lm_head.layer_norm", config=dense)
    return masked_language_model(
        folder, named, decoder="lm_head.decoder", bias="lm_head.decoder.bias"
    )


HEADS: dict[str, HeadReader] = {
    "EsmcModel": embedder,
    "EsmcForSequenceClassification": FAIRSEQ_CLASSIFIER,
    "EsmcForTokenClassification": lambda folder: token_classifier(folder, output="score"),
    "EsmcForMaskedLM": _masked,
}
