"""MPT (MosaicML 2023): ALiBi, no biases, not even in layer norms."""

from export.checkpoint import Checkpoint
from export.importers.causal import architecture_of, causal_checkpoint
from export.importers.gated_decoder import TARGET, DecoderSizes, Names, gated_table
from export.importers.norms import layer_norm
from export.importers.support import clip_of
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from model.config import Activation
from model.position_config import RelativeBiasConfig, RelativeBiasKind

_SOURCE = "transformer.blocks.{n}"
NAMES: Names = {
    "embedding.tokens": ("transformer.wte",),
    "decoder.final_norm": ("transformer.norm_f",),
    "head.output": ("lm_head",),
    f"{TARGET}.mixer_norm": (f"{_SOURCE}.norm_1",),
    f"{TARGET}.mixer.qkv": (f"{_SOURCE}.attn.Wqkv",),
    f"{TARGET}.mixer.output": (f"{_SOURCE}.attn.out_proj",),
    f"{TARGET}.feed_forward_norm": (f"{_SOURCE}.norm_2",),
    f"{TARGET}.feed_forward.input": (f"{_SOURCE}.ffn.up_proj",),
    f"{TARGET}.feed_forward.output": (f"{_SOURCE}.ffn.down_proj",),
}
FIELDS = {
    "hidden_size": "d_model",
    "num_attention_heads": "n_heads",
    "num_hidden_layers": "n_layers",
}


def import_mpt(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``MptForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config.with_names(**FIELDS)
    architecture = _architecture(config)
    check_supported(
        config,
        expansion_ratio=(4,),
        logit_scale=(None,),
        no_bias=(True,),
        norm_type=("low_precision_layernorm", "layernorm"),
    )
    settings = config.fields("attn_config")
    check_supported(
        settings,
        alibi=(True,),
        alibi_bias_max=(8,),
        attn_type=("multihead_attention",),
        attn_uses_sequence_id=(False,),
        prefix_lm=(False,),
        qk_ln=(False,),
    )
    norm = layer_norm(config, "layer_norm_epsilon", bias=False)
    inner_size = 4 * config.positive("hidden_size")
    sizes = DecoderSizes.of(config, tied=True, inner_size=inner_size, norm=norm)
    attention = sizes.attention(
        input_bias=False,
        output_bias=False,
        scale=settings.optional_number("softmax_scale"),
        clip=clip_of(settings),
        bias=RelativeBiasConfig(kind=RelativeBiasKind.LINEAR),
    )
    layer = sizes.layer(attention, activation=Activation.GELU, gated=False)
    model = sizes.model((layer,) * sizes.num_layers, config.positive("max_seq_len", 2048))
    return causal_checkpoint(folder, model, architecture, gated_table(model, NAMES))


def _architecture(config: Fields) -> str:
    """The name in ``transformers``; the first checkpoints have that of their own code."""
    if config.texts("architectures") == ["MPTForCausalLM"]:
        return "MptForCausalLM"
    return architecture_of(config, "MptForCausalLM")
