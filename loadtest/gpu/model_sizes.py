"""The models of ``loadtest gpu``: configurations and numbers of parameters."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any


class Family(StrEnum):
    """Model families, by their names in ``loadtest/peers/random_models.py``."""

    DECODER = "llama"
    ENCODER_DECODER = "bart"
    ENCODER = "bert"


@dataclass(frozen=True, kw_only=True)
class ModelSize:
    """A model's size.

    Args:
        config: fields of the Hugging Face configuration.
        encoder: parameters that are used per token of a source or text.
        decoder: parameters that are used per output token, output projection included.
        cache_values: elements of the self-attention cache per token.
        cross_values: elements of the cross-attention cache per source token.
        made_as: the model's name in ``loadtest/peers/random_models.py``, if not the family's.
    """

    name: str
    family: Family
    config: Mapping[str, Any]
    encoder: int = 0
    decoder: int = 0
    cache_values: int = 0
    cross_values: int = 0
    made_as: str = ""


def llama(
    name: str, hidden: int, inner: int, layers: int, heads: int, kv_heads: int, vocabulary: int
) -> ModelSize:
    """A Llama with heads of size ``hidden / heads`` and an untied output projection."""
    kv_size = 2 * hidden // heads * kv_heads
    return ModelSize(
        name=name,
        family=Family.DECODER,
        config={
            "vocab_size": vocabulary,
            "hidden_size": hidden,
            "intermediate_size": inner,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "max_position_embeddings": 2048,
            "tie_word_embeddings": False,
        },
        decoder=layers * (hidden * (2 * hidden + kv_size) + 3 * hidden * inner)
        + hidden * vocabulary,
        cache_values=layers * kv_size,
    )


def bart(name: str, hidden: int, inner: int, layers: int, heads: int, vocabulary: int) -> ModelSize:
    """The Transformer of Vaswani et al. 2017 in BART's configuration; ``layers`` on each side."""
    sides: dict[str, Any] = {}
    for side in ("encoder", "decoder"):
        sides |= {f"{side}_layers": layers, f"{side}_attention_heads": heads}
        sides |= {f"{side}_ffn_dim": inner}
    feed_forward = 2 * hidden * inner
    return ModelSize(
        name=name,
        family=Family.ENCODER_DECODER,
        config={
            "vocab_size": vocabulary,
            "d_model": hidden,
            "activation_function": "relu",
            "max_position_embeddings": 1024,
            "forced_eos_token_id": None,
            "decoder_start_token_id": 2,
            "normalize_before": False,  # read by CTranslate2's converter
            **sides,
        },
        # Keys and values of cross-attention are computed once per source token.
        encoder=layers * (6 * hidden**2 + feed_forward),
        decoder=layers * (6 * hidden**2 + feed_forward) + hidden * vocabulary,
        cache_values=layers * 2 * hidden,
        cross_values=layers * 2 * hidden,
    )


def bert(name: str, hidden: int, layers: int, heads: int, vocabulary: int = 30522) -> ModelSize:
    """A BERT; its feed-forward layer is four times ``hidden``."""
    return ModelSize(
        name=name,
        family=Family.ENCODER,
        config={
            "vocab_size": vocabulary,
            "hidden_size": hidden,
            "intermediate_size": 4 * hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "max_position_embeddings": 512,
        },
        encoder=layers * 12 * hidden**2,
    )


def _with(size: ModelSize, **fields: float) -> ModelSize:
    return replace(size, config={**size.config, **fields})


# Small, but with shapes of the fast kernels: heads of 64, four query heads per key/value head. With
# the usual initial weights of BART and BERT, attention hardly affects the output: these are larger.
_LARGE = 0.09
CHECK_SIZES = (
    llama("llama-check", 256, 512, 2, 4, 1, 512),
    _with(bart("bart-check", 128, 256, 2, 2, 512), init_std=_LARGE),
    _with(bert("bert-check", 128, 2, 2, 512), initializer_range=_LARGE),
)


def _as(size: ModelSize, name: str, made_as: str) -> ModelSize:
    """An encoder of another class with the same configuration."""
    return replace(size, name=name, family=Family.ENCODER, made_as=made_as)


# Other kinds of vectors: of the last token in a causal stack, of the vocabulary's tokens, and of
# tokens that attend by rotary positions, in groups of heads.
VECTOR_SIZES = (
    _as(CHECK_SIZES[0], "causal-check", "llama-encoder"),
    _as(CHECK_SIZES[2], "sparse-check", "splade"),
    _with(_as(CHECK_SIZES[0], "rotary-check", "eurobert"), initializer_range=_LARGE),
)
# A decoder whose scores have biases (ALiBi).
BIASED_SIZE = _with(
    ModelSize(
        name="biased-check",
        family=Family.DECODER,
        config={"vocab_size": 512, "hidden_size": 256, "n_layer": 2, "n_head": 4},
        made_as="bloom",
    ),
    initializer_range=_LARGE,
)
BENCHMARK_SIZES = (
    llama("llama-135m", 576, 1536, 30, 9, 3, 49152),
    llama("llama-1.1b", 2048, 5632, 22, 32, 4, 32000),
    bart("transformer-base", 512, 2048, 6, 8, 32000),
    bart("transformer-big", 1024, 4096, 6, 16, 32000),
    bert("bert-base", 768, 12, 12),
    bert("bert-large", 1024, 24, 16),
)
SIZES = {size.name: size for size in (*CHECK_SIZES, *BENCHMARK_SIZES)}
