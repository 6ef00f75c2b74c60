"""Names of a decoder's modules in this project and in checkpoints."""

from collections.abc import Mapping

from model.config import NormOrder

# The checkpoint's names for each module of the model; several are packed along the output axis.
# ``{n}`` is the layer's number. A norm without a name multiplies by 1.
Names = Mapping[str, tuple[str, ...]]

TARGET = "decoder.layers.{n}"
_SOURCE = "model.layers.{n}"
HUGGING_FACE: Names = {
    "embedding.tokens": ("model.embed_tokens",),
    "decoder.final_norm": ("model.norm",),
    "head.output": ("lm_head",),
    f"{TARGET}.mixer_norm": (f"{_SOURCE}.input_layernorm",),
    f"{TARGET}.mixer.qkv": tuple(f"{_SOURCE}.self_attn.{name}_proj" for name in "qkv"),
    f"{TARGET}.mixer.query_norm": (f"{_SOURCE}.self_attn.q_norm",),
    f"{TARGET}.mixer.key_norm": (f"{_SOURCE}.self_attn.k_norm",),
    f"{TARGET}.mixer.output": (f"{_SOURCE}.self_attn.o_proj",),
    f"{TARGET}.mixer.sinks": (f"{_SOURCE}.self_attn.sinks",),
    f"{TARGET}.feed_forward_norm": (f"{_SOURCE}.post_attention_layernorm",),
    f"{TARGET}.feed_forward.input": (f"{_SOURCE}.mlp.gate_proj", f"{_SOURCE}.mlp.up_proj"),
    f"{TARGET}.feed_forward.output": (f"{_SOURCE}.mlp.down_proj",),
}
# The modules of a mixture of experts; their names differ between families.
ROUTER = f"{TARGET}.feed_forward.router"
GATES = f"{TARGET}.feed_forward.experts.input"
DOWN = f"{TARGET}.feed_forward.experts.output"
CHOICE_BIAS = f"{TARGET}.feed_forward.choice_bias"
SHARED_GATES = f"{TARGET}.feed_forward.shared.input"
SHARED_DOWN = f"{TARGET}.feed_forward.shared.output"
SHARED_GATE = f"{TARGET}.feed_forward.shared.gate"
NORM_NAMES = {
    NormOrder.POST: ("mixer_norm", "feed_forward_norm"),
    NormOrder.PRE: ("mixer_norm", "feed_forward_norm"),
    NormOrder.RES_POST: ("mixer_norm", "feed_forward_norm"),
    NormOrder.SANDWICH: (
        "mixer_norm.before",
        "mixer_norm.after",
        "feed_forward_norm.before",
        "feed_forward_norm.after",
    ),
}
