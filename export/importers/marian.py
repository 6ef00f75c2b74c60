"""Marian's Transformers for translation (Junczys-Dowmunt et al. 2018).

These are the Transformers of Vaswani et al. 2017; the decoder has masked self-attention or an SSRU
(Kim et al. 2019). Names and formulas: marian-dev, ``src/models/transformer.h``.
"""

import math
import re

import msgspec

from export.checkpoint import Checkpoint, check_weights
from export.importers.marian_weights import MIXERS, MarianMixer, marian_weights
from export.importers.samples import source_sentences
from export.importers.support import MAX_LAYERS, bundle_name, divide_heads
from export.readers.fields import Fields
from export.readers.marian_folder import MarianFolder
from export.readers.shortlist import read_marian_shortlist
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
    MixerKind,
    ModelConfig,
    NormConfig,
    NormKind,
    NormOrder,
    StackConfig,
)
from model.position_config import PositionConfig, PositionKind

ARCHITECTURE = "MarianTransformer"
# Sinusoids have no limit; this one limits the server's cache.
MAX_POSITIONS = 1024
# The constant in Marian's CPU and GPU kernels.
EPSILON = 1e-6
# marian-decoder's own default of --max-length-factor.
MAX_LENGTH_FACTOR = 3.0
ACTIVATIONS = {"relu": Activation.RELU, "swish": Activation.SILU}

CHECKED: dict[str, tuple[object, ...]] = {
    "type": ("transformer",),
    "transformer-preprocess": ("", "d"),
    "transformer-postprocess": ("dan", "an"),
    "transformer-postprocess-emb": ("", "d"),
    "transformer-postprocess-top": ("", "d"),
    "transformer-ffn-depth": (2,),
    "transformer-decoder-ffn-depth": (0, 2),
    "transformer-decoder-dim-ffn": (0,),
    "transformer-no-projection": (False,),
    "transformer-tied-layers": ([],),
    "transformer-train-position-embeddings": (False,),
    "transformer-train-positions": (False,),
    "transformer-pool": (False,),
    "transformer-rnn-projection": (False,),
    "layer-normalization": (False,),
    "lemma-dim-emb": (0,),
    "right-left": (False,),
    "ulr": (False,),
}


def import_marian(folder: MarianFolder) -> Checkpoint:
    """The translation model in ``folder``, ready for a bundle.

    Marian starts a target with a zero vector instead of a token. Here, the token ``<start>`` after
    the vocabulary replaces it, with a row of zeros; it is suppressed.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config, vocabulary = folder.model.config, folder.vocabulary
    check_supported(config, **CHECKED)
    mixer = _mixer(config)
    start = len(vocabulary.pieces)
    model = _config(config, mixer, start + 1)
    weights = marian_weights(folder.model, model, mixer)
    check_weights(model, weights)
    languages = _languages(folder.description)
    source_language, target_language = languages or (None, None)
    return Checkpoint(
        config=model,
        weights=weights,
        tokenizer_json=vocabulary.to_json(append_eos=True, extra_control_tokens=("<start>",)),
        architecture=ARCHITECTURE,
        tasks=(Task.TRANSLATE,),
        special_tokens=SpecialTokens(
            eos=(vocabulary.eos,),
            pad=start,
            unk=vocabulary.unk,
            decoder_start=start,
            # marian-decoder also suppresses <unk>, unless it runs with --allow-unk.
            suppressed=(vocabulary.unk, start),
        ),
        license="unknown",
        name=bundle_name(folder.path),
        source_language=source_language,
        target_language=target_language,
        max_length_factor=folder.decoder_config.number("max-length-factor", MAX_LENGTH_FACTOR),
        shortlist=None
        if folder.shortlist is None
        else read_marian_shortlist(folder.shortlist, model.vocabulary_size),
        sample_inputs=source_sentences(source_language),
    )


def _mixer(config: Fields) -> MarianMixer:
    name = config.text("transformer-decoder-autoreg", "self-attention")
    mixer = lookup(MIXERS, name, f"{config.origin}: transformer-decoder-autoreg")
    if mixer.kind == MixerKind.SSRU:
        check_supported(config, **{"dec-cell": ("ssru",)})
    return mixer


def _config(config: Fields, mixer: MarianMixer, vocabulary_size: int) -> ModelConfig:
    hidden_size = config.positive("dim-emb")
    num_heads = config.positive("transformer-heads")
    activation = config.text("transformer-ffn-activation", "swish")
    attention = AttentionConfig(
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_size=divide_heads(config.origin, hidden_size, num_heads),
        input_bias=True,
        output_bias=True,
    )
    encoder = LayerConfig(
        attention=attention,
        feed_forward=FeedForwardConfig(
            inner_size=config.positive("transformer-dim-ffn"),
            activation=lookup(
                ACTIVATIONS, activation, f"{config.origin}: transformer-ffn-activation"
            ),
            gated=False,
            bias=True,
        ),
        norm=NormConfig(kind=NormKind.LAYER, epsilon=EPSILON),
        norm_order=NormOrder.POST,
    )
    decoder = msgspec.structs.replace(
        encoder,
        mixer=mixer.kind,
        attention=attention if mixer.kind == MixerKind.ATTENTION else None,
        cross_attention=attention,
    )
    tied = config.flag("tied-embeddings-all", False) or config.flag("tied-embeddings", False)
    return ModelConfig(
        kind=Kind.ENCODER_DECODER,
        vocabulary_size=vocabulary_size,
        hidden_size=hidden_size,
        position=PositionConfig(kind=PositionKind.SINUSOIDAL, max_positions=MAX_POSITIONS),
        embedding=EmbeddingConfig(scale=math.sqrt(hidden_size)),
        encoder=StackConfig(layers=(encoder,) * config.positive("enc-depth", maximum=MAX_LAYERS)),
        decoder=StackConfig(layers=(decoder,) * config.positive("dec-depth", maximum=MAX_LAYERS)),
        head=HeadConfig(kind=HeadKind.LANGUAGE_MODEL, bias=True, tied=tied),
    )


def _languages(description: Fields) -> tuple[str, str] | None:
    """Language codes of source and target, from a name such as ``en-pt-tiny``."""
    match = re.match(r"([a-z]{2,3})-([a-z]{2,3})\b", description.text("shortName", ""))
    return (match[1], match[2]) if match else None
