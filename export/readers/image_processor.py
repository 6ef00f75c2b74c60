"""``preprocessor_config.json``: how ``transformers`` turns a picture into a model's input."""

from dataclasses import dataclass

from export.errors import SourceError, UnsupportedError
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import lookup
from model.embeddings import MAX_PIXEL
from model.image_config import Resampling

PROCESSOR_FILE = "preprocessor_config.json"
# By the numbers of Pillow's ``Image.Resampling``.
RESAMPLINGS = {
    "0": Resampling.NEAREST,
    "1": Resampling.LANCZOS,
    "2": Resampling.BILINEAR,
    "3": Resampling.BICUBIC,
    "4": Resampling.BOX,
    "5": Resampling.HAMMING,
}
HALF = (0.5, 0.5, 0.5)
# Mean and deviation of ImageNet's channels, and of CLIP's training images.
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))

Resize = int | tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class ProcessorDefaults:
    """What a class of image processors assumes where the file says nothing.

    ``is_square``: a number as ``size`` is that of both sides, not of the shorter one.
    """

    resize: Resize = (224, 224)
    resampling: int = 2
    crop: int | None = None
    mean: tuple[float, ...] = HALF
    deviation: tuple[float, ...] = HALF
    is_square: bool = True


VIT = ProcessorDefaults()
# By the start of the class's name.
PROCESSORS = {
    "ViT": VIT,
    "DeiT": ProcessorDefaults(
        resize=(256, 256), resampling=3, crop=224, mean=IMAGENET[0], deviation=IMAGENET[1]
    ),
    "Bit": ProcessorDefaults(
        resize=224, resampling=3, crop=224, mean=CLIP[0], deviation=CLIP[1], is_square=False
    ),
    "CLIP": ProcessorDefaults(
        resize=224, resampling=3, crop=224, mean=CLIP[0], deviation=CLIP[1], is_square=False
    ),
    "Siglip": ProcessorDefaults(resampling=3),
}


@dataclass(frozen=True, kw_only=True)
class ImageProcessor:
    """How a picture is resized, cut to ``height`` by ``width`` pixels, and normalised.

    ``mean`` and ``deviation``: of each channel, of values between 0 and 1.
    """

    resize: tuple[int, int]
    keeps_aspect_ratio: bool
    resampling: Resampling
    height: int
    width: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]


def read_image_processor(folder: HuggingFaceFolder, num_channels: int) -> ImageProcessor:
    """The image processor of ``folder``.

    Raises:
        SourceError: the file is missing or damaged.
        UnsupportedError: an unknown class, or one that keeps a picture's size.
    """
    value = folder.read_json(PROCESSOR_FILE)
    if not isinstance(value, dict):
        raise SourceError(
            f"{folder.path}: no {PROCESSOR_FILE}: save the model's image processor beside it"
        )
    file = Fields(value, PROCESSOR_FILE)
    defaults = _defaults(file)
    if not file.flag("do_resize", True):
        raise UnsupportedError(f"{PROCESSOR_FILE}: do_resize is false: pictures have any size")
    resize = _size(file, "size", defaults.resize, defaults.is_square)
    crop: Resize | None = None
    if file.flag("do_center_crop", defaults.crop is not None):
        crop = _size(file, "crop_size", defaults.crop, is_square=True)
    final = resize if crop is None else crop
    if isinstance(final, int):
        raise UnsupportedError(f"{PROCESSOR_FILE}: size and crop_size leave the width open")
    mean, deviation = _normalisation(file, defaults, num_channels)
    return ImageProcessor(
        resize=(resize, resize) if isinstance(resize, int) else resize,
        keeps_aspect_ratio=isinstance(resize, int),
        resampling=lookup(
            RESAMPLINGS,
            str(file.integer("resample", defaults.resampling)),
            f"{file.origin}: resample",
        ),
        height=final[0],
        width=final[1],
        mean=mean,
        deviation=deviation,
    )


def _defaults(file: Fields) -> ProcessorDefaults:
    name = file.text("image_processor_type", file.text("feature_extractor_type", "ViT"))
    family = next((start for start in PROCESSORS if name.startswith(start)), name)
    return lookup(PROCESSORS, family, f"{file.origin}: image_processor_type")


def _size(file: Fields, name: str, default: Resize | None, is_square: bool) -> Resize:
    """Height and width, or the length of the shorter edge."""
    value = file.get(name)
    if value is None and default is not None:
        return (default, default) if is_square and isinstance(default, int) else default
    if isinstance(value, dict):
        sizes = file.fields(name)
        if sizes.get("shortest_edge") is not None and sizes.get("longest_edge") is None:
            return sizes.positive("shortest_edge")
        return sizes.positive("height"), sizes.positive("width")
    size = file.positive(name)
    return (size, size) if is_square else size


def _normalisation(
    file: Fields, defaults: ProcessorDefaults, num_channels: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of each channel, for values that were divided by 255."""
    scale = file.number("rescale_factor", 1 / MAX_PIXEL) if file.flag("do_rescale", True) else 1.0
    mean, deviation = [0.0] * num_channels, [1.0] * num_channels
    if file.flag("do_normalize", True):
        mean = _channels(file, "image_mean", defaults.mean, num_channels)
        deviation = _channels(file, "image_std", defaults.deviation, num_channels)
    if not scale > 0 or not all(value > 0 for value in deviation):
        raise SourceError(f"{file.origin}: rescale_factor and image_std must be positive")
    values = MAX_PIXEL * scale  # of a pixel as bright as possible, before the mean is subtracted
    return tuple(x / values for x in mean), tuple(x / values for x in deviation)


def _channels(
    file: Fields, name: str, default: tuple[float, ...], num_channels: int
) -> list[float]:
    values = file.get(name, list(default[:num_channels]))
    values = [values] * num_channels if isinstance(values, int | float) else values
    if not isinstance(values, list) or len(values) != num_channels:
        raise SourceError(
            f"{file.origin}: {name} is not a number for each of {num_channels} channels"
        )
    return [Fields({name: value}, file.origin).number(name) for value in values]
