"""The configuration of models that read images as patches. Imports no torch."""

import math
from enum import StrEnum
from typing import Annotated, Literal

import msgspec

from model.graph_spec import Record, TokenId
from model.position_config import ConfigStruct, PositionConfig, PositionKind


class PatchConfig(ConfigStruct, frozen=True, kw_only=True):
    """An image as a sequence of vectors (Dosovitskiy et al. 2021, equation 1).

    Attributes:
        height: height of the image in pixels, a multiple of ``size``; ``width`` likewise.
        num_channels: 3 for red, green and blue, 1 for grey.
        size: the side of a square patch, in pixels.
        mean: per channel, subtracted from values between 0 and 1.
        deviation: per channel, divides the difference.
        num_class_tokens: number of learned vectors before those of the patches.
        bias: whether the linear map from a patch to its vector has a bias.
    """

    height: int
    width: int
    num_channels: int = 3
    size: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    num_class_tokens: int = 1
    bias: bool = True

    @property
    def num_tokens(self) -> int:
        """Number of an image's vectors: class tokens and patches."""
        return self.num_class_tokens + (self.height // self.size) * (self.width // self.size)

    @property
    def position(self) -> PositionConfig:
        """The positions of these vectors: one learned vector each."""
        return PositionConfig(kind=PositionKind.LEARNED, max_positions=self.num_tokens)


MAX_IMAGE_SIDE = 1 << 12  # in pixels
MAX_IMAGE_TOKENS = 1 << 16
Side = Annotated[int, msgspec.Meta(ge=1, le=MAX_IMAGE_SIDE)]


class Resampling(StrEnum):
    """Resampling filters, with Pillow's names."""

    NEAREST = "nearest"
    BOX = "box"
    BILINEAR = "bilinear"
    HAMMING = "hamming"
    BICUBIC = "bicubic"
    LANCZOS = "lanczos"


Markup = Annotated[str, msgspec.Meta(max_length=256)]


class ImagePrompt(Record, frozen=True, kw_only=True):
    """How an image is written in a decoder's prompt.

    It is ``before``, the token ``token`` for each vector, ``after``. Tiles come first.

    Attributes:
        placeholder: what the chat template writes for an image.
        token: id of the token that stands for a vector.
        before_tile: before the tokens of a tile; ``{row}`` and ``{column}`` count from 1.
        after_row: after the last tile of each row.
        after_tiles: after the last row.
    """

    placeholder: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    token: TokenId
    before: Markup = ""
    after: Markup = ""
    before_tile: Markup = ""
    after_row: Markup = ""
    after_tiles: Markup = ""


class Tiling(Record, frozen=True, kw_only=True):
    """How a picture is cut into tiles of the size of an image (Laurençon et al. 2024, Idefics 3).

    Attributes:
        longest_edge: the picture is first resized so that its longer side has this many pixels.
        splits: whether there are tiles before the whole picture; if not, it is only resized twice.
    """

    longest_edge: Side
    splits: bool = True


class ImageSpec(Record, frozen=True, kw_only=True):
    """How a picture becomes the graph's input ``pixels``.

    It is resized, then a region of ``height`` by ``width`` pixels is cut out of its middle.

    Attributes:
        resize: height and width after resizing.
        keeps_aspect_ratio: the picture then covers ``resize``, and one side may be longer.
        num_tokens: the model's vectors per image, or per tile.
        prompt: how a decoder's prompt has images; None for other models.
        tiling: how a picture becomes several images; None: it becomes one.
    """

    height: Side
    width: Side
    num_channels: Literal[1, 3]
    resize: tuple[Side, Side]
    keeps_aspect_ratio: bool = False
    resampling: Resampling
    num_tokens: Annotated[int, msgspec.Meta(ge=1, le=MAX_IMAGE_TOKENS)]
    prompt: ImagePrompt | None = None
    tiling: Tiling | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of one image as the graph takes it."""
        return self.height * self.width * self.num_channels

    @property
    def max_tokens(self) -> int:
        """The most vectors of a picture, tiles included."""
        if self.tiling is None or not self.tiling.splits:
            return self.num_tokens
        return self.num_tokens * (1 + math.ceil(self.tiling.longest_edge / self.height) ** 2)


def image_spec(
    patches: PatchConfig,
    resize: tuple[int, int] | None = None,
    resampling: Resampling = Resampling.BILINEAR,
    *,
    keeps_aspect_ratio: bool = False,
) -> ImageSpec:
    """The preprocessing for a model with ``patches``; by default, the whole picture is resized."""
    return ImageSpec(
        height=patches.height,
        width=patches.width,
        num_channels=1 if patches.num_channels == 1 else 3,
        resize=resize or (patches.height, patches.width),
        keeps_aspect_ratio=keeps_aspect_ratio,
        resampling=resampling,
        num_tokens=patches.num_tokens,
    )
