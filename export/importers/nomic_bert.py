"""nomic-bert (Nussbaum et al. 2024), as ``transformers`` saves it or as it was published.

BERT with rotary positions, gated feed-forwards and no biases. The first folders use the field names
of GPT-2's configuration.
"""

import dataclasses

from export.checkpoint import Checkpoint
from export.importers.encoders import assemble
from export.importers.head_tables import always, classifier, four_classes, masked
from export.importers.rotary_bert import RotaryBertFamily, RotaryBertNames, rotary_body
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported, lookup
from model.config import Activation

_LAYER = "encoder.layers.{n}"
FAMILY = RotaryBertFamily(
    base="nomic_bert",
    names=RotaryBertNames(
        embedding_norm="emb_ln",
        qkv=(f"{_LAYER}.attn.Wqkv",),
        attention_output=f"{_LAYER}.attn.out_proj",
        attention_norm=f"{_LAYER}.norm1",
        feed_forward_input=(f"{_LAYER}.mlp.fc12", f"{_LAYER}.mlp.fc11"),
        feed_forward_output=f"{_LAYER}.mlp.fc2",
        feed_forward_norm=f"{_LAYER}.norm2",
    ),
    attention_bias=False,
    input_bias=False,
    output_bias=False,
    act="silu",
    epsilon=1e-12,
    theta=1000.0,
    num_segments=2,
)
# The configuration's fields and the first folders' names for them.
FIELDS = {
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
    "layer_norm_eps": "layer_norm_epsilon",
    "rope_theta": "rotary_emb_base",
}
GATED = {"swiglu": "silu", "geglu": "gelu"}


def import_nomic_bert(folder: HuggingFaceFolder) -> Checkpoint:
    """The model in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    if "n_embd" in config:
        config = _renamed(config)
    config = Fields({"hidden_act": FAMILY.act, **config}, config.origin)
    folder = dataclasses.replace(folder, config=config)
    body = rotary_body(config, folder.weights, FAMILY)
    return assemble(folder, body, HEADS, "NomicBertModel")


def _renamed(config: Fields) -> Fields:
    """The configuration of a folder from before ``transformers`` had this family.

    Raises:
        UnsupportedError: a variant of its code that no published text embedding model uses.
    """
    check_supported(
        config,
        causal=(False,),
        mlp_fc1_bias=(False,),
        mlp_fc2_bias=(False,),
        moe_every_n_layers=(0, -1),
        num_experts=(0, 1),
        parallel_block=(False,),
        prenorm=(False,),
        qkv_proj_bias=(False,),
        rotary_emb_fraction=(1,),
        rotary_emb_interleaved=(False,),
        rotary_emb_scale_base=(),
        scale_attn_by_inverse_layer_idx=(False,),
        scale_attn_weights=(True,),
        use_rms_norm=(False,),
    )
    name = config.text("activation_function", "gelu")
    fields = {field: config[old] for field, old in FIELDS.items() if old in config}
    fields["hidden_act"] = lookup(GATED, name, f"{config.origin}: activation_function")
    if config.get("rotary_scaling_factor") is not None:
        # Dynamic scaling has no effect up to the training length.
        fields["max_position_embeddings"] = config.positive("max_trained_positions", 2048)
    return Fields({**config, **fields}, config.origin)


_TRANSFORM = "cls.predictions.transform"
HEADS = four_classes(
    "NomicBert",
    classifier=classifier("nomic_bert.pooler.dense", always(Activation.TANH)),
    masked=masked(
        f"{_TRANSFORM}.dense",
        f"{_TRANSFORM}.layer_norm",
        "cls.predictions.decoder",
        "cls.predictions.bias",
    ),
)
