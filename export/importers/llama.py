"""Llama (Touvron et al. 2023) and models of its architecture, such as SmolLM2.

The architecture, and the form in which ``transformers`` saves it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from export.checkpoint import Checkpoint, check_weights
from export.errors import SourceError
from export.importers.renaming import Rename, per_layer, rename, stack_rows, transpose
from export.importers.samples import ENGLISH_PROMPTS
from export.importers.support import MAX_LAYERS, bundle_name, divide_heads
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported, lookup
from model.bundle import SpecialTokens, Task
from model.config import (
    Activation,
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    HeadConfig,
    HeadKind,
    Kind,
    LayerConfig,
    ModelConfig,
    NormConfig,
    NormKind,
    NormOrder,
    PositionConfig,
    PositionKind,
    RotaryConfig,
    StackConfig,
)


@dataclass(frozen=True, kw_only=True)
class LlamaShape:
    """What varies between models of this architecture."""

    vocabulary_size: int
    hidden_size: int
    inner_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    max_positions: int
    rotary_base: float
    epsilon: float
    tied: bool
    attention_bias: bool
    feed_forward_bias: bool

    def config(self, origin: str) -> ModelConfig:
        if self.num_heads % self.num_kv_heads:
            raise SourceError(
                f"{origin}: {self.num_kv_heads} key-value heads do not divide {self.num_heads}"
            )
        norm = NormConfig(kind=NormKind.RMS, epsilon=self.epsilon)
        layer = LayerConfig(
            attention=AttentionConfig(
                num_heads=self.num_heads,
                num_kv_heads=self.num_kv_heads,
                head_size=self.head_size,
                input_bias=self.attention_bias,
                output_bias=self.attention_bias,
                rotary=RotaryConfig(base=self.rotary_base),
            ),
            feed_forward=FeedForwardConfig(
                inner_size=self.inner_size,
                activation=Activation.SILU,
                gated=True,
                bias=self.feed_forward_bias,
            ),
            norm=norm,
            norm_order=NormOrder.PRE,
        )
        return ModelConfig(
            kind=Kind.DECODER,
            vocabulary_size=self.vocabulary_size,
            hidden_size=self.hidden_size,
            position=PositionConfig(kind=PositionKind.NONE, max_positions=self.max_positions),
            embedding=EmbeddingConfig(),
            decoder=StackConfig(layers=(layer,) * self.num_layers, final_norm=norm),
            head=HeadConfig(kind=HeadKind.LANGUAGE_MODEL, tied=self.tied),
        )


# What this form calls the weights that the tables below name; ``{n}`` is the layer.
HUGGING_FACE = {
    "tokens": "model.embed_tokens",
    "attention_norm": "model.layers.{n}.input_layernorm",
    "query": "model.layers.{n}.self_attn.q_proj",
    "key": "model.layers.{n}.self_attn.k_proj",
    "value": "model.layers.{n}.self_attn.v_proj",
    "attention_output": "model.layers.{n}.self_attn.o_proj",
    "feed_forward_norm": "model.layers.{n}.post_attention_layernorm",
    "gate": "model.layers.{n}.mlp.gate_proj",
    "up": "model.layers.{n}.mlp.up_proj",
    "down": "model.layers.{n}.mlp.down_proj",
    "final_norm": "model.norm",
    "output": "lm_head",
}
# Our linear layers and theirs, which are packed on the output axis.
ATTENTION = {
    "decoder.layers.{n}.mixer.qkv": ("query", "key", "value"),
    "decoder.layers.{n}.mixer.output": ("attention_output",),
}
FEED_FORWARD = {
    "decoder.layers.{n}.feed_forward.input": ("gate", "up"),
    "decoder.layers.{n}.feed_forward.output": ("down",),
}
LAYER_NORMS = {
    "decoder.layers.{n}.mixer_norm": "attention_norm",
    "decoder.layers.{n}.feed_forward_norm": "feed_forward_norm",
}


def llama_table(names: Mapping[str, str], shape: LlamaShape) -> list[Rename]:
    """Every weight of a model of ``shape`` whose checkpoint uses ``names``."""

    def linear(target: str, roles: tuple[str, ...], *, bias: bool) -> list[Rename]:
        sources = tuple(names[role] for role in roles)
        kinds = {"weight": transpose, "bias": stack_rows} if bias else {"weight": transpose}
        return [
            Rename(f"{target}.{kind}", tuple(f"{source}.{kind}" for source in sources), transform)
            for kind, transform in kinds.items()
        ]

    def weight(target: str, role: str) -> Rename:
        return Rename(f"{target}.weight", (f"{names[role]}.weight",))

    layer = [weight(target, role) for target, role in LAYER_NORMS.items()]
    for target, roles in ATTENTION.items():
        layer += linear(target, roles, bias=shape.attention_bias)
    for target, roles in FEED_FORWARD.items():
        layer += linear(target, roles, bias=shape.feed_forward_bias)
    return [
        weight("embedding.tokens", "tokens"),
        *per_layer(layer, shape.num_layers),
        weight("decoder.final_norm", "final_norm"),
        *([] if shape.tied else linear("head.output", ("output",), bias=False)),
    ]


def import_llama(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``LlamaForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: as their names say.
    """
    config = folder.config
    architecture = next(iter(config.texts("architectures")), "LlamaForCausalLM")
    lookup({"LlamaForCausalLM": None}, architecture, f"{config.origin}: architectures")
    shape = _hugging_face_shape(config)
    model = shape.config(config.origin)
    # Buffers of old transformers versions, and a tied matrix that was saved all the same.
    ignored = [f"model.layers.{n}.self_attn.rotary_emb.inv_freq" for n in range(shape.num_layers)]
    weights = rename(
        llama_table(HUGGING_FACE, shape),
        folder.weights,
        ignored=[*ignored, "lm_head.weight"] if shape.tied else ignored,
    )
    check_weights(model, weights)
    eos = folder.generation_config.integers("eos_token_id") or config.integers("eos_token_id")
    return Checkpoint(
        config=model,
        weights=weights,
        tokenizer_json=folder.tokenizer_json,
        architecture=architecture,
        tasks=(Task.GENERATE,),
        special_tokens=SpecialTokens(
            eos=eos,
            pad=config.integer("pad_token_id", next(iter(eos), 0)),
            bos=config.optional_integer("bos_token_id"),
        ),
        license=folder.license,
        name=bundle_name(folder.path),
        chat_template=folder.chat_template,
        sample_inputs=ENGLISH_PROMPTS,
    )


def _hugging_face_shape(config: Fields) -> LlamaShape:
    check_supported(config, hidden_act=("silu",))
    hidden_size = config.positive("hidden_size")
    num_heads = config.positive("num_attention_heads")
    head_size = config.optional_integer("head_dim")
    return LlamaShape(
        vocabulary_size=config.positive("vocab_size"),
        hidden_size=hidden_size,
        inner_size=config.positive("intermediate_size"),
        num_layers=config.positive("num_hidden_layers", maximum=MAX_LAYERS),
        num_heads=num_heads,
        num_kv_heads=config.positive("num_key_value_heads", num_heads),
        head_size=head_size or divide_heads(config.origin, hidden_size, num_heads),
        max_positions=config.positive("max_position_embeddings"),
        rotary_base=_rotary_base(config),
        epsilon=config.number("rms_norm_eps", 1e-6),
        tied=config.flag("tie_word_embeddings", False),
        attention_bias=config.flag("attention_bias", False),
        feed_forward_bias=config.flag("mlp_bias", False),
    )


def _rotary_base(config: Fields) -> float:
    """From either form of the configuration: ``rope_parameters`` came with transformers 5."""
    for name in ("rope_parameters", "rope_scaling"):
        check_supported(config.fields(name), rope_type=("default",), type=("default",))
    base = config.number("rope_theta", 10_000.0)
    return config.fields("rope_parameters").number("rope_theta", base)
