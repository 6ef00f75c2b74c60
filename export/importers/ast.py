"""Audio Spectrogram Transformers (AST, Gong et al. 2021), as ``transformers`` saves them."""

from dataclasses import replace

from msgspec import structs

from export.checkpoint import Checkpoint
from export.errors import SourceError, UnsupportedError
from export.importers import vit_tables
from export.importers.activations import activation
from export.importers.bert_tables import layer_norm, num_layers, two_maps
from export.importers.encoders import Body, assemble
from export.importers.heads import Head, sequence_classifier
from export.importers.renaming import Rename, affine, linear, per_layer
from export.importers.vit import CLASS_TOKEN, DISTILLATION_TOKEN, NAMES
from export.readers.feature_extractor import read_feature_extractor
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from model.audio_config import AudioSpec
from model.bundle import Task
from model.config import EmbeddingConfig, PoolingKind, SpectrogramConfig, StackConfig
from model.image_config import MAX_IMAGE_TOKENS

MEAN, DEVIATION = -4.2677393, 4.5689974  # of AudioSet
MAX_FRAMES = 1 << 14
MAX_MEL_BINS = 256


def import_ast(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``ASTForAudioClassification`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    spectrogram = read_spectrogram(config, read_feature_extractor(folder))
    feed_forward = two_maps(config, activation(config, "hidden_act", "gelu"))
    layers = (vit_tables.pre_norm_layer(config, feed_forward),) * num_layers(config)
    body = Body(
        base="audio_spectrogram_transformer",
        hidden_size=config.positive("hidden_size"),
        position=spectrogram.position,
        embedding=EmbeddingConfig(),
        spectrogram=spectrogram,
        encoder=StackConfig(layers=layers, final_norm=layer_norm(config, default=1e-12)),
        table=(
            *linear(
                *("embedding.patches", "embeddings.patch_embeddings.projection"),
                bias=True,
                rows=vit_tables.flat_patches,
            ),
            vit_tables.class_tokens(CLASS_TOKEN, DISTILLATION_TOKEN),
            Rename(
                "embedding.positions.weight",
                ("embeddings.position_embeddings",),
                lambda table: table.flatten(0, -2),
            ),
            *per_layer(vit_tables.with_biases(config, NAMES.table()), len(layers)),
            *affine("encoder.final_norm", "layernorm"),
        ),
    )
    architecture = "ASTForAudioClassification"
    checkpoint = assemble(folder, body, {architecture: _classifier}, architecture)
    audio = AudioSpec(
        sample_rate=spectrogram.sample_rate,
        num_samples=spectrogram.num_samples,
        num_tokens=spectrogram.num_tokens,
    )
    return replace(checkpoint, audio=audio, sample_inputs=())


def read_spectrogram(config: Fields, extractor: Fields) -> SpectrogramConfig:
    """The input of a model, from config.json and its feature extractor.

    Raises:
        SourceError: the extractor makes spectrograms of another size, or without a patch.
        UnsupportedError: there are too many patches, or see :mod:`export.errors`.
    """
    check_supported(
        extractor,
        feature_extractor_type=("ASTFeatureExtractor",),
        sampling_rate=(16_000,),
        feature_size=(1,),
    )
    sizes = {
        name: (config.positive(name, default), extractor.positive(name, default))
        for name, default in (("max_length", 1024), ("num_mel_bins", 128))
    }
    for name, (expected, made) in sizes.items():
        if expected != made:
            raise SourceError(
                f"{config.origin}: {name} is {expected}, but the feature extractor makes {made}"
            )
    normalizes = extractor.flag("do_normalize", True)
    deviation = 2 * extractor.number("std", DEVIATION) if normalizes else 1.0
    spectrogram = SpectrogramConfig(
        num_frames=config.positive("max_length", 1024, maximum=MAX_FRAMES),
        num_mel_bins=config.positive("num_mel_bins", 128, maximum=MAX_MEL_BINS),
        mean=extractor.number("mean", MEAN) if normalizes else 0.0,
        deviation=deviation,
        patch_size=vit_tables.read_patch_size(config, 16),
        time_stride=config.positive("time_stride", 10),
        frequency_stride=config.positive("frequency_stride", 10),
    )
    if deviation <= 0 or min(spectrogram.grid) < 1:
        raise SourceError(f"{config.origin}: the features make no patches, or std is not positive")
    if spectrogram.num_tokens > MAX_IMAGE_TOKENS:
        raise UnsupportedError(
            f"{config.origin}: {spectrogram.num_tokens} vectors of a recording; supported: up to "
            f"{MAX_IMAGE_TOKENS}"
        )
    return spectrogram


def _classifier(folder: HuggingFaceFolder) -> Head:
    """The mean of both class tokens, a norm and a linear map."""
    pooling, norm = PoolingKind.CLASS_TOKEN_MEAN, layer_norm(folder.config, default=1e-12)
    head = sequence_classifier(folder, output="classifier.dense", pooling=pooling)
    return replace(
        head,
        config=structs.replace(head.config, pooled_norm=norm),
        tasks=(Task.CLASSIFY,),
        table=(*head.table, *affine("head.pooled_norm", "classifier.layernorm")),
    )
