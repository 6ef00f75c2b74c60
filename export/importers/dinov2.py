"""DINOv2 (Oquab et al. 2023), as ``transformers`` saves it; also with registers (Darcet 2023)."""

from torch import Tensor

from export.checkpoint import Checkpoint
from export.errors import UnsupportedError
from export.importers import vit_tables
from export.importers.activations import activation
from export.importers.bert_tables import layer_norm, num_layers
from export.importers.encoders import Body
from export.importers.heads import Head, sequence_classifier
from export.importers.renaming import Rename, affine, linear, per_layer
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.readers.image_processor import read_image_processor
from model.config import (
    Activation,
    EmbeddingConfig,
    FeedForwardConfig,
    PoolingKind,
    StackConfig,
)

EPSILON, PATCH_SIZE = 1e-6, 14
SOURCE, TARGET = "encoder.layer.{n}", "encoder.layers.{n}"


def import_dinov2(folder: HuggingFaceFolder) -> Checkpoint:
    """The model in ``folder``, for images of the size that its processor makes.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    return _import(folder, "Dinov2", num_registers=0)


def import_dinov2_with_registers(folder: HuggingFaceFolder) -> Checkpoint:
    """As :func:`import_dinov2`."""
    number = folder.config.integer("num_register_tokens", 4)
    return _import(folder, "Dinov2WithRegisters", num_registers=number, antialias=True)


def _import(
    folder: HuggingFaceFolder, family: str, *, num_registers: int, antialias: bool = False
) -> Checkpoint:
    config = folder.config
    processor = read_image_processor(folder, config.positive("num_channels", 3))
    patches = vit_tables.read_patches(
        config,
        processor,
        num_class_tokens=1 + num_registers,
        patch_size=PATCH_SIZE,
        any_size=True,
    )
    layer = vit_tables.pre_norm_layer(config, _feed_forward(config), epsilon=EPSILON)
    tokens = ("embeddings.cls_token", *["embeddings.register_tokens"] * bool(num_registers))
    body = Body(
        base="dinov2_with_registers" if antialias else "dinov2",
        hidden_size=config.positive("hidden_size"),
        position=patches.position,
        embedding=EmbeddingConfig(),
        patches=patches,
        encoder=StackConfig(
            layers=(layer,) * num_layers(config),
            final_norm=layer_norm(config, default=EPSILON),
        ),
        table=(
            *vit_tables.patch_map("embeddings.patch_embeddings.projection"),
            vit_tables.class_tokens(*tokens),
            vit_tables.position_table(
                "embeddings.position_embeddings",
                patches,
                _trained_grid(config),
                num_unplaced=num_registers,
                antialias=antialias,
            ),
            *per_layer(vit_tables.with_biases(config, _layer_table(config)), num_layers(config)),
            *affine("encoder.final_norm", "layernorm"),
        ),
        ignored=("embeddings.mask_token", "embeddings.register_tokens"),
    )
    heads = {
        f"{family}Model": vit_tables.image_embedder,
        f"{family}ForImageClassification": _classifier,
    }
    return vit_tables.assemble_images(folder, body, processor, heads, f"{family}Model")


def _classifier(folder: HuggingFaceFolder) -> Head:
    return sequence_classifier(folder, pooling=PoolingKind.CLASS_AND_PATCH_MEAN)


def _trained_grid(config: Fields) -> vit_tables.Grid:
    """The patch grid of an image of ``image_size``.

    Raises:
        UnsupportedError: it is not square: ``transformers`` interpolates positions of squares.
    """
    height, width = vit_tables.image_size(config)
    if height != width:
        raise UnsupportedError(f"{config.origin}: image_size is not square: {height} by {width}")
    side = height // vit_tables.read_patch_size(config, PATCH_SIZE)
    return side, side


def _feed_forward(config: Fields) -> FeedForwardConfig:
    """Inner size: ``mlp_ratio`` times the hidden size; if gated, 2/3 of it in multiples of 8."""
    size = int(config.positive("hidden_size") * config.number("mlp_ratio", 4))
    gated = config.flag("use_swiglu_ffn", False)
    if gated:
        size = (int(size * 2 / 3) + 7) // 8 * 8
    return FeedForwardConfig(
        inner_size=size,
        activation=Activation.SILU if gated else activation(config, "hidden_act", "gelu"),
        gated=gated,
        bias=True,
    )


def _layer_table(config: Fields) -> list[Rename]:
    maps = ("weights_in", "weights_out") if config.flag("use_swiglu_ffn", False) else ("fc1", "fc2")
    qkv = (f"{SOURCE}.attention.attention.{name}" for name in ("query", "key", "value"))
    return [
        *linear(f"{TARGET}.mixer.qkv", *qkv, bias=True),
        *_scaled("mixer.output", "attention.output.dense", "layer_scale1"),
        *affine(f"{TARGET}.mixer_norm", f"{SOURCE}.norm1"),
        *linear(f"{TARGET}.feed_forward.input", f"{SOURCE}.mlp.{maps[0]}", bias=True),
        *_scaled("feed_forward.output", f"mlp.{maps[1]}", "layer_scale2"),
        *affine(f"{TARGET}.feed_forward_norm", f"{SOURCE}.norm2"),
    ]


def _scaled(target: str, source: str, scale: str) -> list[Rename]:
    """A linear map with a factor per output (LayerScale, Touvron et al. 2021)."""

    def weight(matrix: Tensor, factors: Tensor) -> Tensor:
        return matrix.T * factors

    def bias(vector: Tensor, factors: Tensor) -> Tensor:
        return vector * factors

    factors = f"{SOURCE}.{scale}.lambda1"
    return [
        Rename(f"{TARGET}.{target}.weight", (f"{SOURCE}.{source}.weight", factors), weight),
        Rename(f"{TARGET}.{target}.bias", (f"{SOURCE}.{source}.bias", factors), bias),
    ]
