"""Llama, Qwen2 and Qwen3 in GGUF, as llama.cpp converts them."""

from collections.abc import Iterator, Mapping

from torch import Tensor

from export.checkpoint import Checkpoint, check_weights
from export.errors import SourceError, WeightsError
from export.importers.gated_decoder import TARGET, DecoderSizes, Names, gated_table
from export.importers.norms import rms_norm
from export.importers.renaming import rename
from export.importers.samples import ENGLISH_PROMPTS
from export.importers.support import MAX_LAYERS, bundle_name, divide_heads
from export.readers.fields import Fields
from export.readers.gguf import GgufFile
from export.supported import check_supported
from export.tokenization.byte_level_bpe import ByteLevelBpe
from model.bundle import SpecialTokens, Task
from model.config import LayerConfig
from model.position_config import ListedScaling, RotaryConfig

FACTORS = "rope_freqs.weight"
_SOURCE = "blk.{n}"
GGUF: Names = {
    "embedding.tokens": ("token_embd",),
    "decoder.final_norm": ("output_norm",),
    "head.output": ("output",),
    f"{TARGET}.mixer_norm": (f"{_SOURCE}.attn_norm",),
    f"{TARGET}.mixer.qkv": tuple(f"{_SOURCE}.attn_{name}" for name in "qkv"),
    f"{TARGET}.mixer.query_norm": (f"{_SOURCE}.attn_q_norm",),
    f"{TARGET}.mixer.key_norm": (f"{_SOURCE}.attn_k_norm",),
    f"{TARGET}.mixer.output": (f"{_SOURCE}.attn_output",),
    f"{TARGET}.feed_forward_norm": (f"{_SOURCE}.ffn_norm",),
    f"{TARGET}.feed_forward.input": (f"{_SOURCE}.ffn_gate", f"{_SOURCE}.ffn_up"),
    f"{TARGET}.feed_forward.output": (f"{_SOURCE}.ffn_down",),
}


def import_llama_gguf(file: GgufFile) -> Checkpoint:
    """The model in a GGUF file of the architecture ``llama``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    shape = _gguf_shape(file, "llama")
    bias = "blk.0.attn_q.bias" in file.weights
    attention = shape.attention(
        input_bias=bias, output_bias=bias, rotary=_rotary(file, "llama", shape)
    )
    layer = shape.layer(attention, bias="blk.0.ffn_gate.bias" in file.weights)
    weights = _Unpermuted(file.weights, shape)
    return _checkpoint(file, "llama", "LlamaForCausalLM", shape, layer, weights)


def import_qwen2_gguf(file: GgufFile) -> Checkpoint:
    """The model in a GGUF file of the architecture ``qwen2``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    shape = _gguf_shape(file, "qwen2")
    attention = shape.attention(
        input_bias=True, output_bias=False, rotary=_rotary(file, "qwen2", shape)
    )
    layer = shape.layer(attention)
    return _checkpoint(file, "qwen2", "Qwen2ForCausalLM", shape, layer, file.weights)


def import_qwen3_gguf(file: GgufFile) -> Checkpoint:
    """The model in a GGUF file of the architecture ``qwen3``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    shape = _gguf_shape(file, "qwen3")
    attention = shape.attention(
        input_bias=False,
        output_bias=False,
        rotary=_rotary(file, "qwen3", shape),
        head_norm=shape.norm,
    )
    layer = shape.layer(attention)
    return _checkpoint(file, "qwen3", "Qwen3ForCausalLM", shape, layer, file.weights)


def _rotary(file: GgufFile, kind: str, shape: DecoderSizes) -> RotaryConfig:
    """Llama 3.1 and later have a factor for each frequency, computed by the converter."""
    scaling = None
    if FACTORS in file.weights:
        factors = tuple(file.weights[FACTORS].flatten().tolist())
        if len(factors) != shape.head_size // 2 or min(factors) <= 0:
            raise SourceError(f"{file.metadata.origin}: {FACTORS} does not fit the heads")
        scaling = ListedScaling(factors=factors)
    base = file.metadata.number(f"{kind}.rope.freq_base", 10_000.0)
    return RotaryConfig(base=base, scaling=scaling)


def _checkpoint(
    file: GgufFile,
    kind: str,
    architecture: str,
    shape: DecoderSizes,
    layer: LayerConfig,
    source_weights: Mapping[str, Tensor],
) -> Checkpoint:
    metadata = file.metadata
    max_positions = metadata.positive(f"{kind}.context_length")
    model = shape.model((layer,) * shape.num_layers, max_positions)
    weights = rename(gated_table(model, GGUF), source_weights, ignored=(FACTORS,))
    check_weights(model, weights)
    ids = metadata.integers("tokenizer.ggml.eos_token_id")
    turn_end = metadata.integers("tokenizer.ggml.eot_token_id")
    return Checkpoint(
        config=model,
        weights=weights,
        tokenizer_json=_gguf_tokenizer(metadata),
        architecture=architecture,
        tasks=(Task.GENERATE,),
        special_tokens=SpecialTokens(
            eos=tuple(dict.fromkeys(ids + turn_end)),
            pad=metadata.integer("tokenizer.ggml.padding_token_id", next(iter(ids), 0)),
            bos=metadata.optional_integer("tokenizer.ggml.bos_token_id"),
            unk=metadata.optional_integer("tokenizer.ggml.unknown_token_id"),
        ),
        license=metadata.text("general.license", "unknown"),
        name=bundle_name(file.path),
        chat_template=metadata.text("tokenizer.chat_template", "") or None,
        sample_inputs=ENGLISH_PROMPTS,
    )


def _gguf_shape(file: GgufFile, kind: str) -> DecoderSizes:
    metadata, weights = file.metadata, file.weights
    hidden_size = metadata.positive(f"{kind}.embedding_length")
    num_heads = metadata.positive(f"{kind}.attention.head_count")
    head_size = metadata.optional_integer(f"{kind}.attention.key_length") or divide_heads(
        metadata.origin, hidden_size, num_heads
    )
    values = {
        f"{kind}.rope.scaling.type": ("none",),
        f"{kind}.rope.dimension_count": (head_size,),
        f"{kind}.attention.value_length": (head_size,),
        f"{kind}.expert_count": (0,),
    }
    check_supported(metadata, **values)
    return DecoderSizes(
        origin=metadata.origin,
        vocabulary_size=len(metadata.texts("tokenizer.ggml.tokens")),
        hidden_size=hidden_size,
        inner_size=metadata.positive(f"{kind}.feed_forward_length"),
        num_layers=metadata.positive(f"{kind}.block_count", maximum=MAX_LAYERS),
        num_heads=num_heads,
        num_kv_heads=metadata.positive(f"{kind}.attention.head_count_kv", num_heads),
        head_size=head_size,
        norm=rms_norm(metadata.number(f"{kind}.attention.layer_norm_rms_epsilon")),
        tied="output.weight" not in weights,
    )


class _Unpermuted(Mapping[str, Tensor]):
    """A GGUF file's weights, with the rows of Q and K in the order of the paper's code.

    llama.cpp's converter interleaves the two halves of each head's rows
    (``convert_hf_to_gguf.py``, ``LlamaModel.permute``); rotary positions here are half-split.
    """

    def __init__(self, weights: Mapping[str, Tensor], shape: DecoderSizes) -> None:
        self._weights = weights
        self._num_heads = {"attn_q": shape.num_heads, "attn_k": shape.num_kv_heads}

    def __getitem__(self, name: str) -> Tensor:
        weight = self._weights[name]
        heads = next((n for part, n in self._num_heads.items() if f".{part}." in name), None)
        if heads is None:
            return weight
        if weight.shape[0] % (2 * heads):
            raise WeightsError(f"wrong shapes: {name} {list(weight.shape)} has {heads} heads")
        halves = weight.reshape(heads, weight.shape[0] // heads // 2, 2, -1)
        return halves.swapaxes(1, 2).reshape(weight.shape)

    def __contains__(self, name: object) -> bool:
        return name in self._weights

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


# ``tokenizer.ggml.token_type``, as ggml numbers them.
_CONTROL, _USER_DEFINED = 3, 4


def _gguf_tokenizer(metadata: Fields) -> str:
    check_supported(metadata, **{"tokenizer.ggml.model": ("gpt2",)})
    tokens = metadata.texts("tokenizer.ggml.tokens")
    types = metadata.integers("tokenizer.ggml.token_type")
    if len(types) != len(tokens):
        raise SourceError(f"{metadata.origin}: {len(types)} token types for {len(tokens)} tokens")
    of_type = {
        kind: [token for token, type_ in zip(tokens, types, strict=True) if type_ == kind]
        for kind in (_CONTROL, _USER_DEFINED)
    }
    prefix = None
    if metadata.flag("tokenizer.ggml.add_bos_token", False):
        bos = metadata.integer("tokenizer.ggml.bos_token_id", maximum=len(tokens) - 1)
        prefix = tokens[bos]
    return ByteLevelBpe(
        tokens=tokens,
        merges=metadata.texts("tokenizer.ggml.merges"),
        pre_tokenizer=metadata.text("tokenizer.ggml.pre", "default"),
        special=of_type[_CONTROL],
        added=of_type[_USER_DEFINED],
        prefix=prefix,
    ).to_json()
