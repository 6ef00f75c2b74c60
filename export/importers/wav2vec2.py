"""Speech encoders that read waveforms, as ``transformers`` saves them.

Wav2Vec2 (Baevski et al. 2020), HuBERT (Hsu et al. 2021) and data2vec (Baevski et al. 2022), with
connectionist temporal classification (Graves et al. 2006), or with labels of whole recordings.
"""

from collections.abc import Sequence
from dataclasses import replace

from export.checkpoint import Checkpoint
from export.importers.activations import activation
from export.importers.audio_heads import audio_classifier, sums_layers
from export.importers.bert_tables import layer_norm, multi_head, num_layers, two_maps
from export.importers.encoders import Body, assemble
from export.importers.heads import Head
from export.importers.renaming import Rename, affine, linear, per_layer
from export.importers.waveform_tables import (
    NAMES,
    audio_spec,
    ignored_weights,
    input_table,
    read_positional,
    read_waveform,
    weight_normed,
)
from export.readers.feature_extractor import read_feature_extractor
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from export.tokenization.ctc import read_ctc_vocabulary
from model.bundle import Task
from model.config import (
    AttentionConfig,
    EmbeddingConfig,
    HeadConfig,
    HeadKind,
    LayerConfig,
    NormConfig,
    NormKind,
    NormOrder,
    StackConfig,
)
from model.waveform_config import PositionalConvolutionConfig, WaveformConfig

POSITIONS = "encoder.pos_conv_embed"
DATA2VEC_NORM = NormConfig(kind=NormKind.LAYER, epsilon=1e-5)


def import_wav2vec2(folder: HuggingFaceFolder) -> Checkpoint:
    """The model in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    check_supported(folder.config, add_adapter=(False,), adapter_attn_dim=(None,))
    return import_with_weight_norm(folder, "wav2vec2", "Wav2Vec2")


def import_hubert(folder: HuggingFaceFolder) -> Checkpoint:
    """As :func:`import_wav2vec2`."""
    config = folder.config
    check_supported(
        config, conv_pos_batch_norm=(False,), add_adapter=(False,), adapter_attn_dim=(None,)
    )
    has_norm = config.flag("feat_proj_layer_norm", True)
    return import_with_weight_norm(folder, "hubert", "Hubert", has_norm=has_norm)


def import_data2vec_audio(folder: HuggingFaceFolder) -> Checkpoint:
    """As :func:`import_wav2vec2`."""
    config = folder.config
    check_supported(config, add_adapter=(False,))
    number = config.positive("num_conv_pos_embeddings", 5, maximum=64)
    size = config.positive("conv_pos_kernel_size", 19)
    positional = read_positional(config, size, number, DATA2VEC_NORM)
    waveform = read_waveform(
        config, read_feature_extractor(folder), _norm(config), positional, "layer"
    )
    table = [
        entry
        for index in range(number)
        for entry in affine(f"embedding.positional.{index}", f"{POSITIONS}.layers.{index}.conv")
    ]
    # The configuration has the field do_stable_layer_norm, but the model ignores it.
    attention = multi_head(config)
    family = "Data2VecAudio"
    return _import(folder, "data2vec_audio", family, waveform, attention, table, is_pre=False)


def import_with_weight_norm(
    folder: HuggingFaceFolder,
    base: str,
    family: str,
    *,
    has_norm: bool = True,
    attention: AttentionConfig | None = None,
    table: Sequence[Rename] = (),
) -> Checkpoint:
    """A model whose positional convolution has weight normalization.

    Args:
        base: the prefix of the body's weights.
        family: the start of the names of classes.
        has_norm: whether frames are normalized before their linear map.
        attention: of each layer; None: plain multi-head attention.
        table: further weights of the body.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    size = config.positive("num_conv_pos_embeddings", 128)
    positional: PositionalConvolutionConfig = read_positional(config, size)
    norm = _norm(config) if has_norm else None
    waveform = read_waveform(config, read_feature_extractor(folder), norm, positional)
    whole = [
        *weight_normed("embedding.positional.0", f"{POSITIONS}.conv", folder.weights),
        *table,
    ]
    is_pre = config.flag("do_stable_layer_norm", False)
    attention = attention or multi_head(config)
    return _import(folder, base, family, waveform, attention, whole, is_pre=is_pre)


def _import(
    folder: HuggingFaceFolder,
    base: str,
    family: str,
    waveform: WaveformConfig,
    attention: AttentionConfig,
    table: Sequence[Rename],
    *,
    is_pre: bool,
) -> Checkpoint:
    """A stack with the norm of vectors after the last layer if ``is_pre``, or before the first.

    ``family`` is the start of the names of classes.
    """
    config, norm = folder.config, _norm(folder.config)
    transcriber, classifier = f"{family}ForCTC", f"{family}ForSequenceClassification"
    architecture = next(iter(config.texts("architectures")), transcriber)
    layer = LayerConfig(
        attention=attention,
        feed_forward=two_maps(config, activation(config, "hidden_act", "gelu")),
        norm=norm,
        norm_order=NormOrder.PRE if is_pre else NormOrder.POST,
    )
    layers = (layer,) * num_layers(config)
    body = Body(
        base=base,
        hidden_size=config.positive("hidden_size"),
        position=waveform.position,
        embedding=EmbeddingConfig(norm=None if is_pre else norm),
        encoder=StackConfig(
            layers=layers,
            final_norm=norm if is_pre else None,
            sums_layers=architecture == classifier and sums_layers(config),
        ),
        waveform=waveform,
        table=(
            *input_table(waveform),
            *table,
            *affine("encoder.final_norm" if is_pre else "embedding.norm", "encoder.layer_norm"),
            *per_layer(NAMES.table(), len(layers)),
        ),
        ignored=ignored_weights(waveform),
    )
    heads = {transcriber: _ctc_head, classifier: audio_classifier}
    checkpoint = replace(
        assemble(folder, body, heads, transcriber), audio=audio_spec(waveform), sample_inputs=()
    )
    if Task.TRANSCRIBE not in checkpoint.tasks:
        return checkpoint
    vocabulary = read_ctc_vocabulary(folder, checkpoint.config.vocabulary_size)
    return replace(
        checkpoint,
        tokenizer_json=vocabulary.tokenizer_json,
        source_language=folder.language,
        ctc=vocabulary.tokens,
    )


def _ctc_head(folder: HuggingFaceFolder) -> Head:
    """Logits of each frame: of the vocabulary, with a blank."""
    size = folder.config.positive("vocab_size")
    return Head(
        config=HeadConfig(kind=HeadKind.TOKEN_CLASSIFICATION, bias=True, num_labels=size),
        tasks=(Task.TRANSCRIBE,),
        table=tuple(linear("head.output", "lm_head", bias=True)),
    )


def _norm(config: Fields) -> NormConfig:
    return layer_norm(config, default=1e-5)
