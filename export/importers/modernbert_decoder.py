"""The decoder of ModernBERT's architecture (Weller et al. 2025, Ettin).

ModernBERT with a causal mask and separate queries, keys and values. A dense layer and a norm come
before the output matrix.
"""

from msgspec import structs

from export.checkpoint import Checkpoint
from export.importers.activations import activation
from export.importers.causal import architecture_of, causal_checkpoint
from export.importers.decoder_names import TARGET, Names
from export.importers.gated_decoder import DecoderSizes, gated_table
from export.importers.layer_types import SLIDING, layer_types
from export.importers.modernbert import BASES
from export.importers.norms import layer_norm
from export.importers.renaming import affine, linear
from export.importers.rotary import rotary
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from model.config import DenseConfig, EmbeddingConfig, ModelConfig, NormConfig, NormKind

_LAYER = "model.layers.{n}"
NAMES: Names = {
    "embedding.tokens": ("model.embeddings.tok_embeddings",),
    "decoder.final_norm": ("model.final_norm",),
    "head.output": ("decoder",),
    f"{TARGET}.mixer_norm": (f"{_LAYER}.attn_norm",),
    f"{TARGET}.mixer.qkv": tuple(f"{_LAYER}.attn.{name}_proj" for name in "qkv"),
    f"{TARGET}.mixer.output": (f"{_LAYER}.attn.Wo",),
    f"{TARGET}.feed_forward_norm": (f"{_LAYER}.mlp_norm",),
    f"{TARGET}.feed_forward.input": (f"{_LAYER}.mlp.Wi",),
    f"{TARGET}.feed_forward.output": (f"{_LAYER}.mlp.Wo",),
}
FIRST_NORM = f"{TARGET}.mixer_norm.".replace("{n}", "0")


def import_modernbert_decoder(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``ModernBertDecoderForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    architecture = architecture_of(config, "ModernBertDecoderForCausalLM")
    norm = layer_norm(config, "norm_eps", bias=config.flag("norm_bias", False))
    dense = DenseConfig(
        size=config.positive("hidden_size"),
        activation=activation(config, "classifier_activation", "gelu"),
        bias=config.flag("classifier_bias", False),
        norm=norm,
    )
    model = _model(config, norm)
    table = gated_table(model, NAMES)
    norms = [
        *affine("embedding.norm", "model.embeddings.norm"),
        *affine("head.dense.0.norm", "lm_head.norm"),
    ]
    table = [
        *(entry for entry in table if not entry.target.startswith(FIRST_NORM)),
        *(entry for entry in norms if norm.bias or entry.target.endswith("weight")),
        *linear("head.dense.0.linear", "lm_head.dense", bias=dense.bias),
    ]
    model = structs.replace(
        model,
        embedding=EmbeddingConfig(norm=norm),
        head=structs.replace(model.head, dense=(dense,)),
    )
    return causal_checkpoint(folder, model, architecture, table, output="decoder.weight")


def _model(config: Fields, norm: NormConfig) -> ModelConfig:
    """The model without the norm of its embeddings and the layer before its output."""
    sizes = DecoderSizes.of(config, norm=norm)
    window = config.positive("local_attention", 128) // 2
    check_supported(config, sliding_window=(window,))
    bias = config.flag("attention_bias", False)
    attentions, limits = {}, []
    for type_, (name, default) in BASES.items():
        fields = Fields({**config, "rope_theta": None}, config.origin)
        base = config.number(name, default)
        positions = rotary(fields, sizes.head_size, default_base=base, layer_type=type_)
        attentions[type_] = sizes.attention(
            input_bias=bias,
            output_bias=bias,
            rotary=positions.config,
            window=window if type_ == SLIDING else None,
        )
        limits.append(positions.max_positions)
    period = config.positive("global_attn_every_n_layers", 3)
    first, *others = (
        sizes.layer(
            attentions[type_],
            activation=activation(config, "hidden_activation", "gelu"),
            bias=config.flag("mlp_bias", False),
        )
        for type_ in layer_types(config, sizes.num_layers, lambda index: index % period != 0)
    )
    # The embeddings are already normalized.
    first = structs.replace(first, mixer_norm=NormConfig(kind=NormKind.NONE, epsilon=0.0))
    head_bias = config.flag("decoder_bias", True)
    return sizes.model((first, *others), min(limits), head_bias=head_bias)
