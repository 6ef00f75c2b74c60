"""Shared by importers of encoders that read waveforms: weights with the names of transformers."""

from collections.abc import Mapping

from torch import Tensor

from export.errors import SourceError
from export.importers.activations import activation
from export.importers.bert_tables import LayerNames
from export.importers.renaming import Rename, affine, linear
from export.importers.whisper_tables import as_linear_map
from export.readers.fields import Fields
from export.supported import check_supported, lookup
from model.audio_config import MAX_SAMPLE_RATE, AudioSpec
from model.norm_config import NormConfig
from model.waveform_config import (
    ChannelNorm,
    ConvolutionConfig,
    PositionalConvolutionConfig,
    WaveformConfig,
)

WINDOW_SECONDS = 30  # the longest window: those of training have up to 35
MAX_CONVOLUTIONS = 64
MAX_FRAME_SECONDS = 1.0
NAMES = LayerNames(
    query="encoder.layers.{n}.attention.q_proj",
    key="encoder.layers.{n}.attention.k_proj",
    value="encoder.layers.{n}.attention.v_proj",
    attention_output="encoder.layers.{n}.attention.out_proj",
    attention_norm="encoder.layers.{n}.layer_norm",
    feed_forward_input="encoder.layers.{n}.feed_forward.intermediate_dense",
    feed_forward_output="encoder.layers.{n}.feed_forward.output_dense",
    feed_forward_norm="encoder.layers.{n}.final_layer_norm",
)
UNUSED = ("masked_spec_embed",)  # masks frames in training
CHANNEL_NORMS = {norm.value: norm for norm in ChannelNorm}


def read_waveform(
    config: Fields,
    extractor: Fields,
    projection_norm: NormConfig | None,
    positional: PositionalConvolutionConfig,
    channel_norm: str | None = None,
) -> WaveformConfig:
    """The input of a model, from config.json and its feature extractor.

    Args:
        channel_norm: the family's ``feat_extract_norm``; None: the field.

    Raises:
        SourceError, UnsupportedError: see :mod:`export.errors`.
    """
    check_supported(
        extractor,
        feature_extractor_type=("Wav2Vec2FeatureExtractor",),
        feature_size=(1,),
        padding_value=(0, 0.0),
    )
    sizes = [
        config.integers(name) or default
        for name, default in (
            ("conv_dim", (512,) * 7),
            ("conv_kernel", (10, 3, 3, 3, 3, 2, 2)),
            ("conv_stride", (5, 2, 2, 2, 2, 2, 2)),
        )
    ]
    if len({*map(len, sizes)}) > 1 or len(sizes[0]) > MAX_CONVOLUTIONS or 0 in sum(sizes, ()):
        raise SourceError(f"{config.origin}: conv_dim, conv_kernel and conv_stride do not match")
    sample_rate = extractor.positive("sampling_rate", 16_000, maximum=MAX_SAMPLE_RATE)
    waveform = WaveformConfig(
        sample_rate=sample_rate,
        num_samples=WINDOW_SECONDS * sample_rate,
        normalize=extractor.flag("do_normalize", True),
        convolutions=tuple(
            ConvolutionConfig(num_channels=channels, size=size, stride=stride)
            for channels, size, stride in zip(*sizes, strict=True)
        ),
        channel_norm=lookup(
            CHANNEL_NORMS,
            channel_norm or config.text("feat_extract_norm", "group"),
            f"{config.origin}: feat_extract_norm",
        ),
        bias=config.flag("conv_bias", False),
        activation=activation(config, "feat_extract_activation", "gelu"),
        projection_norm=projection_norm,
        positional=positional,
    )
    if max(waveform.frame_size, waveform.hop_size) > MAX_FRAME_SECONDS * sample_rate:
        raise SourceError(f"{config.origin}: a frame of {waveform.frame_size} samples is too long")
    return waveform


def read_positional(
    config: Fields, size: int, num_layers: int = 1, norm: NormConfig | None = None
) -> PositionalConvolutionConfig:
    """Positional convolutions of ``size`` vectors.

    Raises:
        SourceError: their groups do not divide the hidden size.
    """
    groups = config.positive("num_conv_pos_embedding_groups", 16)
    hidden_size = config.positive("hidden_size")
    if hidden_size % groups:
        raise SourceError(f"{config.origin}: {groups} groups do not divide the size {hidden_size}")
    return PositionalConvolutionConfig(
        size=size, num_groups=groups, num_layers=num_layers, norm=norm
    )


def audio_spec(waveform: WaveformConfig) -> AudioSpec:
    """The input format of a model that reads ``waveform``."""
    return AudioSpec(
        sample_rate=waveform.sample_rate,
        num_samples=waveform.num_samples,
        num_tokens=waveform.num_tokens,
        frame_size=waveform.frame_size,
        hop_size=waveform.hop_size,
    )


def input_table(waveform: WaveformConfig) -> list[Rename]:
    """The weights of the convolutions over samples, and of the map from frames to vectors."""
    table: list[Rename] = []
    for index in range(len(waveform.convolutions)):
        source = f"feature_extractor.conv_layers.{index}"
        others = f"embedding.convolutions.{index - 1}"
        target = others if index else "embedding.first_convolution"
        if not index and waveform.channel_norm == ChannelNorm.GROUP:
            table.append(Rename(f"{target}.weight", (f"{source}.conv.weight",), as_linear_map))
            for name in ("weight", "bias"):
                table.append(Rename(f"{target}.norm_{name}", (f"{source}.layer_norm.{name}",)))
            continue
        name = f"{target}.map"
        table.append(Rename(f"{name}.weight", (f"{source}.conv.weight",), as_linear_map))
        if waveform.bias:
            table.append(Rename(f"{name}.bias", (f"{source}.conv.bias",)))
        if waveform.channel_norm == ChannelNorm.LAYER:
            table += affine(f"{target}.norm", f"{source}.layer_norm")
    if waveform.projection_norm is not None:
        table += affine("embedding.projection_norm", "feature_projection.layer_norm")
    return [
        *table,
        *linear("embedding.frame_projection", "feature_projection.projection", bias=True),
    ]


def ignored_weights(waveform: WaveformConfig) -> tuple[str, ...]:
    """Weights that change nothing: the bias of a convolution whose outputs are normalized."""
    is_cancelled = waveform.bias and waveform.channel_norm == ChannelNorm.GROUP
    bias = "feature_extractor.conv_layers.0.conv.bias"
    return (*UNUSED, bias) if is_cancelled else UNUSED


def weight_normed(target: str, source: str, names: Mapping[str, Tensor]) -> list[Rename]:
    """A convolution with weight normalization (Salimans and Kingma 2016) of each kernel position.

    Args:
        names: of the checkpoint's weights, which depend on the version of PyTorch.
    """
    old = (f"{source}.weight_g", f"{source}.weight_v")
    new = tuple(f"{source}.parametrizations.weight.original{index}" for index in range(2))
    is_old = any(name.endswith(old[1]) for name in names)
    return [
        Rename(f"{target}.weight", old if is_old else new, _normed),
        Rename(f"{target}.bias", (f"{source}.bias",)),
    ]


def _normed(magnitude: Tensor, direction: Tensor) -> Tensor:
    """``g v / |v|``: ``g [1, 1, size]``, ``v [outputs, inputs, size]``."""
    normed: Tensor = magnitude * direction / direction.norm(dim=(0, 1), keepdim=True)
    return normed
