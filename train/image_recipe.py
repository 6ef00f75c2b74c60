"""The sections of a recipe for models of images."""

from typing import Annotated, Literal

import msgspec

from model.image_config import PatchConfig, Side
from train.section import Positive, Section, Share

MAX_TOKENS = 1 << 16  # of an image
Intensity = Annotated[float, msgspec.Meta(ge=0, le=1)]
Deviation = Annotated[float, msgspec.Meta(gt=0, le=1)]


class PatchesRecipe(Section, frozen=True, kw_only=True):
    """Images as sequences of patches: a Vision Transformer (Dosovitskiy et al. 2021).

    An image of another size is resized. A class token comes before the patches, and the label is
    read from it.

    Attributes:
        size: the side of a square patch, in pixels.
        height, width: of an image, in pixels; multiples of ``size``.
        num_channels: 3 for red, green and blue, 1 for grey.
        mean, deviation: of each channel, with values between 0 and 1: the model reads the
            difference from the mean, divided by the deviation.
    """

    size: Side
    height: Side
    width: Side
    num_channels: Literal[1, 3] = 3
    mean: tuple[Intensity, ...]
    deviation: tuple[Deviation, ...]

    @property
    def config(self) -> PatchConfig:
        """The model's part that reads such images."""
        return PatchConfig(
            height=self.height,
            width=self.width,
            num_channels=self.num_channels,
            size=self.size,
            mean=self.mean,
            deviation=self.deviation,
        )


class ImageStreamRecipe(Section, frozen=True, kw_only=True):
    """A stream of an image beside a text's: ViLBERT (Lu et al. 2019).

    The rest of ``[model]`` describes the text's stream. Before each of the last ``num_connections``
    layers, both streams have a co-attentional layer.

    Attributes:
        num_heads: of its layers, and of attention to the other stream in both.
    """

    hidden_size: Positive
    num_layers: Annotated[int, msgspec.Meta(ge=1, le=256)]
    num_heads: Positive
    inner_size: Positive
    num_connections: Annotated[int, msgspec.Meta(ge=1, le=256)]


class AugmentationRecipe(Section, frozen=True, kw_only=True):
    """How training varies its images, anew in each epoch; see :mod:`train.images`.

    Attributes:
        shift: at most so many pixels, up or down and left or right.
        rotation: at most so many degrees, either way.
        scale: images become at most so much larger or smaller, as a share of their size.
    """

    shift: Annotated[float, msgspec.Meta(ge=0, le=4096)] = 0.0
    rotation: Annotated[float, msgspec.Meta(ge=0, le=180)] = 0.0
    scale: Share = 0.0
