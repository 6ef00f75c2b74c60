"""The recipe's sections for image models."""

from typing import Annotated, Literal

import msgspec

from model.image_config import PatchConfig, Side
from train.section import Positive, Section, Share

MAX_TOKENS = 1 << 16  # per image
Intensity = Annotated[float, msgspec.Meta(ge=0, le=1)]
Deviation = Annotated[float, msgspec.Meta(gt=0, le=1)]


class PatchesRecipe(Section, frozen=True, kw_only=True):
    """Images as sequences of patches: a Vision Transformer (Dosovitskiy et al. 2021).

    Images of other sizes are resized. A class token precedes the patches, and the label is
    predicted from it.

    Attributes:
        size: the side of a square patch, in pixels.
        height, width: size of an image in pixels; multiples of ``size``.
        num_channels: 3 for red, green and blue, 1 for grey.
        mean, deviation: per channel, for values between 0 and 1: the model reads the difference
            from the mean, divided by the deviation.
    """

    size: Side
    height: Side
    width: Side
    num_channels: Literal[1, 3] = 3
    mean: tuple[Intensity, ...]
    deviation: tuple[Deviation, ...]

    @property
    def config(self) -> PatchConfig:
        """The configuration of the model's patch embedding."""
        return PatchConfig(
            height=self.height,
            width=self.width,
            num_channels=self.num_channels,
            size=self.size,
            mean=self.mean,
            deviation=self.deviation,
        )


class ImageStreamRecipe(Section, frozen=True, kw_only=True):
    """An image stream beside a text stream: ViLBERT (Lu et al. 2019).

    The rest of ``[model]`` describes the text stream. Both streams have a co-attentional layer
    before each of the last ``num_connections`` layers.

    Attributes:
        num_heads: number of heads in the image's layers, and in cross-attention of both streams.
    """

    hidden_size: Positive
    num_layers: Annotated[int, msgspec.Meta(ge=1, le=256)]
    num_heads: Positive
    inner_size: Positive
    num_connections: Annotated[int, msgspec.Meta(ge=1, le=256)]


class AugmentationRecipe(Section, frozen=True, kw_only=True):
    """The random changes to training images in each epoch; see :mod:`train.images`.

    Attributes:
        shift: the most pixels, up or down and left or right.
        rotation: the most degrees, either way.
        scale: the largest relative change of the size.
    """

    shift: Annotated[float, msgspec.Meta(ge=0, le=4096)] = 0.0
    rotation: Annotated[float, msgspec.Meta(ge=0, le=180)] = 0.0
    scale: Share = 0.0
