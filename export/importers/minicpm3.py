"""MiniCPM3 (OpenBMB 2024): latent attention; embeddings, residuals and logits are scaled."""

import math

from export.checkpoint import Checkpoint
from export.errors import SourceError
from export.importers.causal import architecture_of, causal_checkpoint
from export.importers.gated_decoder import DecoderSizes, gated_table
from export.importers.latent_attention import latent_attention, latent_sizes, latent_table
from export.importers.renaming import scaled
from export.importers.support import divide_heads
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported

# Defaults of the configuration's class.
DEFAULTS: dict[str, object] = {
    "kv_lora_rank": 256,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
}


def import_minicpm3(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``MiniCPM3ForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    own = folder.config
    check_supported(own, hidden_act=("silu",))
    heads, hidden = own.positive("num_attention_heads"), own.positive("hidden_size")
    value_size = divide_heads(own.origin, hidden, heads)
    config = latent_sizes(own, **DEFAULTS, v_head_dim=value_size)
    if "q_lora_rank" not in config:
        config = config.with_defaults(q_lora_rank=768)
    architecture = architecture_of(config, "MiniCPM3ForCausalLM")
    sizes = DecoderSizes.of(config, epsilon=1e-5, tied=True)
    attention, positions = latent_attention(config, sizes)
    model = sizes.model(
        (sizes.layer(attention),) * sizes.num_layers,
        positions.max_positions,
        embedding_scale=config.number("scale_emb", 12.0),
    )
    depth = config.optional_number("scale_depth", absent=1.4)
    residual = scaled(1.0 if depth is None else depth / math.sqrt(sizes.num_layers))
    base = config.optional_number("dim_model_base", absent=256.0)
    if base is not None and base <= 0:
        raise SourceError(f"{config.origin}: dim_model_base is {base}")
    table = gated_table(
        model,
        output=residual,
        final_norm=scaled(1.0 if base is None else base / sizes.hidden_size),
        mixer=latent_table(attention, interleaved=False, output=residual),
    )
    return causal_checkpoint(folder, model, architecture, table)
