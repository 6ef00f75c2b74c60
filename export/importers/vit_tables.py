"""Shared by the importers of vision transformers: patches, positions, layers and heads."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from export.checkpoint import Checkpoint
from export.errors import SourceError, UnsupportedError
from export.importers.bert_tables import layer_norm, multi_head
from export.importers.encoders import Body, assemble
from export.importers.heads import Head, HeadReader
from export.importers.renaming import Rename, linear
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.readers.image_processor import ImageProcessor
from model.bundle import Embedding, Task
from model.config import (
    FeedForwardConfig,
    HeadConfig,
    HeadKind,
    LayerConfig,
    NormOrder,
    PoolingKind,
)
from model.image_config import MAX_IMAGE_TOKENS, ImageSpec, PatchConfig, image_spec

Grid = tuple[int, int]  # rows and columns of patches


def read_patches(
    config: Fields,
    processor: ImageProcessor,
    *,
    num_class_tokens: int = 1,
    bias: bool = True,
    patch_size: int = 16,
    any_size: bool = False,
) -> PatchConfig:
    """The patches of an image of the size that the model's processor makes.

    Args:
        patch_size: the family's default.
        any_size: whether the model interpolates its positions.

    Raises:
        SourceError: the model expects another size, or the patches do not fill the image.
        UnsupportedError: the patches are not square, or there are too many.
    """
    size = read_patch_size(config, patch_size)
    made, expected = (processor.height, processor.width), image_size(config)
    if made != expected and not any_size:
        raise SourceError(
            f"{config.origin}: image_size is {expected}, but the image processor makes {made}"
        )
    if made[0] % size or made[1] % size:
        raise SourceError(f"{config.origin}: patches of {size} pixels do not fill {made}")
    patches = PatchConfig(
        height=made[0],
        width=made[1],
        num_channels=config.positive("num_channels", 3),
        size=size,
        mean=processor.mean,
        deviation=processor.deviation,
        num_class_tokens=num_class_tokens,
        bias=bias,
    )
    if patches.num_tokens > MAX_IMAGE_TOKENS:
        raise UnsupportedError(
            f"{config.origin}: {patches.num_tokens} vectors of an image; supported: up to "
            f"{MAX_IMAGE_TOKENS}"
        )
    return patches


def image_size(config: Fields) -> Grid:
    """Height and width of training images, in pixels."""
    return _pair(config, "image_size", 224)


def read_patch_size(config: Fields, default: int) -> int:
    """The side of a patch, in pixels.

    Raises:
        UnsupportedError: it is not square.
    """
    height, width = _pair(config, "patch_size", default)
    if height != width:
        raise UnsupportedError(f"{config.origin}: patch_size is not square: {height} by {width}")
    return height


def assemble_images(
    folder: HuggingFaceFolder,
    body: Body,
    processor: ImageProcessor,
    heads: Mapping[str, HeadReader],
    default: str,
) -> Checkpoint:
    """As :func:`export.importers.encoders.assemble`, with the preprocessing of images.

    Raises:
        UnsupportedError: as :func:`preprocessing` does.
    """
    checkpoint = assemble(folder, body, heads, default)
    if body.patches is None:
        raise ValueError("a model of images has patches")
    image = preprocessing(body.patches, processor)
    tasks = tuple(task for task in checkpoint.tasks if task != Task.RERANK)
    return replace(checkpoint, tasks=tasks, image=image)


def preprocessing(patches: PatchConfig, processor: ImageProcessor) -> ImageSpec:
    """How the server turns a picture into the input of a model with ``patches``.

    Raises:
        UnsupportedError: the model reads neither RGB nor grey images.
    """
    if patches.num_channels not in (1, 3):
        raise UnsupportedError(f"num_channels: {patches.num_channels} is not supported: 1 or 3")
    return image_spec(
        patches,
        processor.resize,
        processor.resampling,
        keeps_aspect_ratio=processor.keeps_aspect_ratio,
    )


def patch_map(source: str, *, bias: bool = True) -> list[Rename]:
    """The convolution ``source`` as a linear map of flattened patches."""
    return linear("embedding.patches", source, bias=bias, rows=flat_patches)


def class_tokens(*sources: str) -> Rename:
    """Class tokens, each ``[1, tokens, size]`` or ``[size]``."""
    return Rename("embedding.class_tokens", sources, _stacked)


def no_class_tokens(source: str) -> Rename:
    """For a model without class tokens; ``source [size]`` is any weight."""
    return Rename(
        "embedding.class_tokens", (source,), lambda weight: weight.new_zeros(0, len(weight))
    )


def position_table(
    source: str,
    patches: PatchConfig,
    trained: Grid | None = None,
    *,
    num_unplaced: int = 0,
    antialias: bool = False,
) -> Rename:
    """A position vector for each class token and patch.

    Args:
        source: ``[1, tokens, size]`` or ``[tokens, size]``.
        trained: patch grid in training, if the table may have to be interpolated.
        num_unplaced: number of last class tokens, which have no position.
    """
    grid = (patches.height // patches.size, patches.width // patches.size)
    num_placed = patches.num_class_tokens - num_unplaced

    def read(table: Tensor) -> Tensor:
        table = table.flatten(0, -2)
        first, rest = table[:num_placed], table[num_placed:]
        if trained is not None and (grid != trained):
            rest = _interpolated(rest, trained, grid, antialias=antialias)
        return torch.cat([first, first.new_zeros(num_unplaced, table.shape[-1]), rest])

    return Rename("embedding.positions.weight", (source,), read)


def _interpolated(table: Tensor, trained: Grid, grid: Grid, *, antialias: bool) -> Tensor:
    """Interpolates ``[rows * columns, size]`` from one grid to another (bicubic)."""
    image = table.T.reshape(1, -1, *trained)
    resized = functional.interpolate(
        image, size=grid, mode="bicubic", align_corners=False, antialias=antialias
    )
    return resized[0].flatten(1).T


def pre_norm_layer(
    config: Fields,
    feed_forward: FeedForwardConfig,
    *,
    epsilon: float = 1e-12,
) -> LayerConfig:
    """A layer with norms before attention and before the feed-forward.

    Args:
        epsilon: the family's default for norms.
    """
    return LayerConfig(
        attention=multi_head(config, input_bias=config.flag("qkv_bias", True)),
        feed_forward=feed_forward,
        norm=layer_norm(config, default=epsilon),
        norm_order=NormOrder.PRE,
    )


def with_biases(config: Fields, table: Iterable[Rename]) -> list[Rename]:
    """A layer's ``table``, without the biases of queries, keys and values if there are none."""
    qkv = "encoder.layers.{n}.mixer.qkv.bias"
    return [entry for entry in table if config.flag("qkv_bias", True) or entry.target != qkv]


def image_embedder(folder: HuggingFaceFolder) -> Head:
    """The class token's vector after the last norm."""
    return pooled_embedder(folder, PoolingKind.CLS)


def pooled_embedder(folder: HuggingFaceFolder, pooling: PoolingKind) -> Head:
    """A pooled vector of the hidden size."""
    size = folder.config.positive("hidden_size")
    return Head(
        config=HeadConfig(kind=HeadKind.EMBEDDING, pooling=pooling),
        tasks=(Task.EMBED,),
        embedding=Embedding(size=size, pooling=pooling, is_normalized=False),
    )


def _pair(config: Fields, name: str, default: int) -> tuple[int, int]:
    """Height and width; a single number is both."""
    value = config.get(name)
    if isinstance(value, list) and len(value) == 2:
        height, width = (Fields({name: side}, config.origin).positive(name) for side in value)
        return height, width
    return (config.positive(name, default),) * 2


def flat_patches(weight: Tensor) -> Tensor:
    """A convolution's ``[outputs, channels, rows, columns]`` as a map of flattened patches."""
    return weight if weight.ndim == 1 else weight.permute(0, 2, 3, 1).flatten(1)


def _stacked(*tokens: Tensor) -> Tensor:
    return torch.cat([token.reshape(-1, token.shape[-1]) for token in tokens])
