"""nanochat (Karpathy 2025): Llama with norms without weights, also of queries, keys and embeddings.

Queries and keys are normalized after rotation, by the opposite angle. Logits are capped.
"""

import torch
from msgspec import structs

from export.checkpoint import Checkpoint
from export.importers.activations import activation
from export.importers.causal import architecture_of, causal_checkpoint
from export.importers.gated_decoder import HUGGING_FACE, TARGET, DecoderSizes, Names, gated_table
from export.importers.renaming import Rename
from export.importers.rotary import rotary, rotary_rows
from export.readers.hugging_face import HuggingFaceFolder
from model.config import EmbeddingConfig

_LAYER = "model.layers.{n}"
NAMES: Names = {
    **HUGGING_FACE,
    "decoder.final_norm": (),
    f"{TARGET}.mixer_norm": (),
    f"{TARGET}.mixer.query_norm": (),
    f"{TARGET}.mixer.key_norm": (),
    f"{TARGET}.feed_forward_norm": (),
    f"{TARGET}.feed_forward.input": (f"{_LAYER}.mlp.fc1",),
    f"{TARGET}.feed_forward.output": (f"{_LAYER}.mlp.fc2",),
}


def import_nanochat(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``NanoChatForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    architecture = architecture_of(config, "NanoChatForCausalLM")
    sizes = DecoderSizes.of(config)
    positions = rotary(config, sizes.head_size)
    bias = config.flag("attention_bias", False)
    attention = sizes.attention(
        input_bias=bias,
        output_bias=bias,
        rotary=positions.config,
        head_norm=sizes.norm,
        norm_rotated=True,
    )
    layer = sizes.layer(
        attention, activation=activation(config, "hidden_act", "relu2"), gated=False
    )
    model = sizes.model(
        (layer,) * sizes.num_layers,
        positions.max_positions,
        soft_cap=config.optional_number("final_logit_softcapping", absent=15.0),
    )
    model = structs.replace(model, embedding=EmbeddingConfig(norm=sizes.norm))
    table = gated_table(model, NAMES, qkv=rotary_rows(attention, is_reversed=True))
    ones = Rename("embedding.norm.weight", (), lambda: torch.ones(sizes.hidden_size))
    return causal_checkpoint(folder, model, architecture, [*table, ones])
