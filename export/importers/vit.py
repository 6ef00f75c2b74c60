"""ViT (Dosovitskiy et al. 2021) and DeiT (Touvron et al. 2021), as ``transformers`` saves them."""

from dataclasses import replace

import torch
from torch import Tensor

from export.checkpoint import Checkpoint
from export.errors import SourceError, UnsupportedError
from export.importers.activations import activation
from export.importers.bert_tables import LayerNames, layer_norm, num_layers
from export.importers.encoders import Body, assemble
from export.importers.heads import Head, sequence_classifier
from export.importers.renaming import Rename, affine, linear, per_layer
from export.importers.support import divide_heads
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.readers.image_processor import ImageProcessor, read_image_processor
from model.bundle import Embedding, ImageSpec, Task
from model.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    HeadConfig,
    HeadKind,
    LayerConfig,
    NormOrder,
    PoolingKind,
    StackConfig,
)
from model.image_config import PatchConfig
from model.position_config import PositionConfig, PositionKind

CLASS_TOKEN, DISTILLATION_TOKEN = "embeddings.cls_token", "embeddings.distillation_token"
NAMES = LayerNames(
    query="encoder.layer.{n}.attention.attention.query",
    key="encoder.layer.{n}.attention.attention.key",
    value="encoder.layer.{n}.attention.attention.value",
    attention_norm="encoder.layer.{n}.layernorm_before",
    feed_forward_norm="encoder.layer.{n}.layernorm_after",
)
UNUSED = ("pooler.dense.weight", "pooler.dense.bias", "embeddings.mask_token")


def import_vit(folder: HuggingFaceFolder) -> Checkpoint:
    """The model in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    return _import(folder, "ViT", (CLASS_TOKEN,))


def import_deit(folder: HuggingFaceFolder) -> Checkpoint:
    """As :func:`import_vit`; of a distilled model, which has two heads, the head by labels."""
    return _import(folder, "DeiT", (CLASS_TOKEN, DISTILLATION_TOKEN))


def _import(folder: HuggingFaceFolder, family: str, class_tokens: tuple[str, ...]) -> Checkpoint:
    config = folder.config
    processor = read_image_processor(folder, config.positive("num_channels", 3))
    patches = read_patches(config, processor, len(class_tokens))
    layers = (_layer(config),) * num_layers(config)
    body = Body(
        base=family.lower(),
        hidden_size=config.positive("hidden_size"),
        position=PositionConfig(kind=PositionKind.LEARNED, max_positions=patches.num_tokens),
        embedding=EmbeddingConfig(),
        patches=patches,
        encoder=StackConfig(layers=layers, final_norm=layer_norm(config)),
        table=(
            *linear(
                "embedding.patches",
                "embeddings.patch_embeddings.projection",
                bias=True,
                rows=_flat_patches,
            ),
            Rename("embedding.class_tokens", class_tokens, _stacked),
            Rename("embedding.positions.weight", ("embeddings.position_embeddings",), _first),
            *per_layer(_layer_table(config), len(layers)),
            *affine("encoder.final_norm", "layernorm"),
        ),
        ignored=UNUSED,
    )
    heads = {
        f"{family}Model": image_embedder,
        f"{family}ForImageClassification": sequence_classifier,
    }
    checkpoint = assemble(folder, body, heads, f"{family}Model")
    return replace(checkpoint, image=image_spec(patches, processor))


def read_patches(config: Fields, processor: ImageProcessor, num_class_tokens: int) -> PatchConfig:
    """How the model reads an image of the size that its processor makes.

    Raises:
        SourceError: the model expects another size, or patches that do not fill it.
    """
    sizes = _pair(config, "image_size", 224)
    height, width = _pair(config, "patch_size", 16)
    if height != width:
        raise UnsupportedError(f"{config.origin}: patch_size is not square: {height} by {width}")
    if (processor.height, processor.width) != sizes:
        raise SourceError(
            f"{config.origin}: image_size is {sizes}, but the image processor makes "
            f"{(processor.height, processor.width)}"
        )
    if sizes[0] % height or sizes[1] % height:
        raise SourceError(f"{config.origin}: patches of {height} pixels do not fill {sizes}")
    return PatchConfig(
        height=sizes[0],
        width=sizes[1],
        num_channels=config.positive("num_channels", 3),
        size=height,
        mean=processor.mean,
        deviation=processor.deviation,
        num_class_tokens=num_class_tokens,
    )


def image_spec(patches: PatchConfig, processor: ImageProcessor) -> ImageSpec:
    """How a server prepares pictures for the model.

    Raises:
        UnsupportedError: it reads neither colours nor grey.
    """
    if patches.num_channels not in (1, 3):
        raise UnsupportedError(f"num_channels: {patches.num_channels} is not supported: 1 or 3")
    return ImageSpec(
        height=patches.height,
        width=patches.width,
        num_channels=1 if patches.num_channels == 1 else 3,
        resize=processor.resize,
        keeps_aspect_ratio=processor.keeps_aspect_ratio,
        resampling=processor.resampling,
        num_tokens=patches.num_tokens,
    )


def image_embedder(folder: HuggingFaceFolder) -> Head:
    """The class token's vector, as it leaves the last norm."""
    size = folder.config.positive("hidden_size")
    return Head(
        config=HeadConfig(kind=HeadKind.EMBEDDING, pooling=PoolingKind.CLS),
        tasks=(Task.EMBED,),
        embedding=Embedding(size=size, pooling=PoolingKind.CLS, is_normalized=False),
    )


def _layer(config: Fields) -> LayerConfig:
    hidden_size = config.positive("hidden_size")
    num_heads = config.positive("num_attention_heads")
    return LayerConfig(
        attention=AttentionConfig(
            num_heads=num_heads,
            num_kv_heads=num_heads,
            head_size=divide_heads(config.origin, hidden_size, num_heads),
            input_bias=config.flag("qkv_bias", True),
            output_bias=True,
        ),
        feed_forward=FeedForwardConfig(
            inner_size=config.positive("intermediate_size"),
            activation=activation(config, "hidden_act", "gelu"),
            gated=False,
            bias=True,
        ),
        norm=layer_norm(config),
        norm_order=NormOrder.PRE,
    )


def _layer_table(config: Fields) -> list[Rename]:
    has_bias = config.flag("qkv_bias", True)
    qkv = "encoder.layers.{n}.mixer.qkv.bias"
    return [entry for entry in NAMES.table() if has_bias or entry.target != qkv]


def _pair(config: Fields, name: str, default: int) -> tuple[int, int]:
    """Height and width; one number is both."""
    value = config.get(name)
    if isinstance(value, list) and len(value) == 2:
        height, width = (Fields({name: side}, config.origin).positive(name) for side in value)
        return height, width
    return (config.positive(name, default),) * 2


def _flat_patches(weight: Tensor) -> Tensor:
    """A convolution's ``[outputs, channels, rows, columns]`` as the map of a flat patch."""
    return weight if weight.ndim == 1 else weight.permute(0, 2, 3, 1).flatten(1)


def _stacked(*tokens: Tensor) -> Tensor:
    """``[1, 1, size]`` of each token to ``[tokens, size]``."""
    return torch.cat(tokens, 1)[0]


def _first(positions: Tensor) -> Tensor:
    return positions[0]
