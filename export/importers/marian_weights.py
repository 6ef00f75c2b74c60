"""Names of the weights of Marian's Transformers: marian-dev, ``src/models/transformer.h``."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from export.errors import UnsupportedError
from export.importers.renaming import Rename, per_layer, rename
from export.readers.marian import MarianFile
from model.config import MixerKind, ModelConfig

# The logit of a suppressed token: finite, to avoid 0 * inf.
NEVER = -1e9


def pack(*weights: Tensor) -> Tensor:
    """Matrices ``[inputs, outputs]`` side by side: ``[inputs, sum of outputs]``."""
    return torch.cat(weights, 1)


def flatten(*weights: Tensor) -> Tensor:
    """Rows ``[1, size]``, one after the other: ``[sum of sizes]``."""
    return torch.cat([weight.flatten() for weight in weights])


def _linear(target: str, prefix: str, names: str) -> list[Rename]:
    """Affine maps ``prefix_W?`` and ``prefix_b?`` for each character of ``names``, packed."""
    return [
        Rename(f"{target}.weight", tuple(f"{prefix}_W{name}" for name in names), pack),
        Rename(f"{target}.bias", tuple(f"{prefix}_b{name}" for name in names), flatten),
    ]


def _norm(target: str, prefix: str) -> list[Rename]:
    return [
        Rename(f"{target}.weight", (f"{prefix}_ln_scale",), flatten),
        Rename(f"{target}.bias", (f"{prefix}_ln_bias",), flatten),
    ]


def _self_attention(side: str) -> list[Rename]:
    target, source = f"{side}.layers.{{n}}", f"{side}_l{{n}}_self"
    return [
        *_linear(f"{target}.mixer.qkv", source, "qkv"),
        *_linear(f"{target}.mixer.output", source, "o"),
        *_norm(f"{target}.mixer_norm", f"{source}_Wo"),
    ]


def _feed_forward(side: str) -> list[Rename]:
    target, source = f"{side}.layers.{{n}}", f"{side}_l{{n}}_ffn"
    return [
        *_linear(f"{target}.feed_forward.input", source, "1"),
        *_linear(f"{target}.feed_forward.output", source, "2"),
        *_norm(f"{target}.feed_forward_norm", f"{source}_ffn"),
    ]


_DECODER = "decoder.layers.{n}"
SSRU = [
    Rename(f"{_DECODER}.mixer.forget.weight", ("decoder_l{n}_rnn_Wf",)),
    Rename(f"{_DECODER}.mixer.forget.bias", ("decoder_l{n}_rnn_bf",), flatten),
    Rename(f"{_DECODER}.mixer.candidate.weight", ("decoder_l{n}_rnn_W",)),
    *_norm(f"{_DECODER}.mixer_norm", "decoder_l{n}_rnn_ffn"),
]
CROSS_ATTENTION = [
    *_linear(f"{_DECODER}.cross_attention.query", "decoder_l{n}_context", "q"),
    *_linear(f"{_DECODER}.cross_attention.key_value", "decoder_l{n}_context", "kv"),
    *_linear(f"{_DECODER}.cross_attention.output", "decoder_l{n}_context", "o"),
    *_norm(f"{_DECODER}.cross_attention_norm", "decoder_l{n}_context_Wo"),
]
ENCODER_LAYER = [*_self_attention("encoder"), *_feed_forward("encoder")]


@dataclass(frozen=True, kw_only=True)
class MarianMixer:
    """A decoder layer's mixer, which ``transformer-decoder-autoreg`` selects."""

    kind: MixerKind
    table: list[Rename]


MIXERS = {
    "self-attention": MarianMixer(kind=MixerKind.ATTENTION, table=_self_attention("decoder")),
    "rnn": MarianMixer(kind=MixerKind.SSRU, table=SSRU),
}


def marian_weights(file: MarianFile, model: ModelConfig, mixer: MarianMixer) -> dict[str, Tensor]:
    """All weights of ``model``, whose last token is the start of every target.

    Raises:
        UnsupportedError: source and target have separate embeddings.
        WeightsError: missing, unexpected or wrongly shaped weights.
    """
    if model.encoder is None or model.decoder is None:
        raise ValueError("a translation model has an encoder and a decoder")
    decoder_layer = [*mixer.table, *CROSS_ATTENTION, *_feed_forward("decoder")]
    table = [
        _embedding(file),
        *per_layer(ENCODER_LAYER, len(model.encoder.layers), first_source_layer=1),
        *per_layer(decoder_layer, len(model.decoder.layers), first_source_layer=1),
    ]
    has_bias = not file.config.flag("output-omit-bias", False)
    if has_bias:
        table.append(Rename("head.output.bias", ("decoder_ff_logit_out_b",), flatten))
    if not model.head.tied:
        table.append(Rename("head.output.weight", ("decoder_ff_logit_out_W",)))
    weights = rename(table, file.weights)
    embedding = weights["embedding.tokens.weight"]
    if not has_bias:
        weights["head.output.bias"] = embedding.new_zeros(embedding.shape[0])
    return _with_start_token(weights)


def _embedding(file: MarianFile) -> Rename:
    target = "embedding.tokens.weight"
    shared = file.config.flag("tied-embeddings-all", False)
    if shared or file.config.flag("tied-embeddings-src", False):
        return Rename(target, ("Wemb",))
    return Rename(target, ("encoder_Wemb", "decoder_Wemb"), _one_embedding)


def _one_embedding(source: Tensor, target: Tensor) -> Tensor:
    if not torch.equal(source, target):
        raise UnsupportedError("encoder_Wemb and decoder_Wemb differ; one embedding is supported")
    return source


def _with_start_token(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """``weights`` with one more token: a zero vector as input, never an output."""
    padding = {
        "embedding.tokens.weight": ((0, 0, 0, 1), 0.0),  # a row
        "head.output.weight": ((0, 1), 0.0),  # a column
        "head.output.bias": ((0, 1), NEVER),
    }
    return {
        name: functional.pad(weight, padding[name][0], value=padding[name][1])
        if name in padding
        else weight
        for name, weight in weights.items()
    }
