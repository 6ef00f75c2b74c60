"""``preprocessor_config.json``: how ``transformers`` turns a picture into a model's input."""

import re
from dataclasses import dataclass

from export.errors import SourceError, UnsupportedError
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported, lookup
from model.embeddings import MAX_PIXEL
from model.image_config import MAX_IMAGE_SIDE, Resampling, Tiling

PROCESSOR_FILE = "preprocessor_config.json"
# Newer processors of texts and images are saved in one file, with the image processor in a field.
WHOLE_PROCESSOR_FILE, IMAGE_PROCESSOR = "processor_config.json", "image_processor"
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
# Mean and deviation of the channels in CLIP's training images.
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))

Resize = int | tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class ProcessorDefaults:
    """The defaults of a class of image processors.

    ``is_square``: whether a number as ``size`` is both sides, not the shorter one.
    """

    resize: Resize = (224, 224)
    resampling: int = 3
    crop: int | None = None
    mean: tuple[float, ...] = HALF
    deviation: tuple[float, ...] = HALF
    is_square: bool = False


CLIP_DEFAULTS = ProcessorDefaults(resize=224, crop=224, mean=CLIP[0], deviation=CLIP[1])
# By the class's name, without its ending.
PROCESSORS = {
    "ViT": ProcessorDefaults(resampling=2, is_square=True),
    "DeiT": ProcessorDefaults(resize=(256, 256), crop=224, is_square=True),
    "Bit": CLIP_DEFAULTS,
    "CLIP": CLIP_DEFAULTS,
    "Llava": CLIP_DEFAULTS,
    "Blip": ProcessorDefaults(resize=(384, 384), mean=CLIP[0], deviation=CLIP[1], is_square=True),
    "Siglip": ProcessorDefaults(),
}
# Those that cut pictures into tiles; default size of a tile.
TILING_PROCESSORS = dict.fromkeys(("Idefics3", "SmolVLM"), ProcessorDefaults(resampling=1))
TILE = 364
ENDINGS = re.compile(r"(ImageProcessor(Fast|Pil)?|FeatureExtractor)$")
# The class for a file that names none, by prefix of ``model_type``.
CLASSES = {
    "vit": "ViT",
    "deit": "DeiT",
    "dinov2": "Bit",
    "blip": "Blip",
    "clip": "CLIP",
    "llava": "CLIP",
    "metaclip_2": "CLIP",
    "siglip": "Siglip",
}


@dataclass(frozen=True, kw_only=True)
class ImageProcessor:
    """How a picture is resized, cropped to ``height`` by ``width`` pixels, and normalized.

    ``mean`` and ``deviation``: per channel, for values between 0 and 1.
    """

    resize: tuple[int, int]
    keeps_aspect_ratio: bool
    resampling: Resampling
    height: int
    width: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    tiling: Tiling | None = None


def read_tiling_processor(folder: HuggingFaceFolder, num_channels: int) -> ImageProcessor:
    """The image processor of Idefics 3 or SmolVLM in ``folder``.

    Raises:
        SourceError: the file is missing or damaged.
        UnsupportedError: the class is unknown, or keeps a picture's size.
    """
    file = _file(folder)
    name = file.text("image_processor_type", "Idefics3ImageProcessor")
    defaults = lookup(TILING_PROCESSORS, ENDINGS.sub("", name), f"{file.origin}: the class")
    check_supported(file, do_resize=(True,))
    side = _longest_edge(file, "max_image_size", TILE)
    mean, deviation = _normalisation(file, defaults, num_channels)
    return ImageProcessor(
        resize=(side, side),
        keeps_aspect_ratio=False,
        resampling=_resampling(file, defaults),
        height=side,
        width=side,
        mean=mean,
        deviation=deviation,
        tiling=Tiling(
            longest_edge=_longest_edge(file, "size", 4 * TILE),
            splits=file.flag("do_image_splitting", True),
        ),
    )


def _longest_edge(file: Fields, name: str, default: int) -> int:
    sizes = file.fields(name) if file.get(name) is not None else Fields({}, file.origin)
    check_supported(sizes, height=(None,), width=(None,), shortest_edge=(None,))
    return sizes.positive("longest_edge", default, maximum=MAX_IMAGE_SIDE)


def _resampling(file: Fields, defaults: ProcessorDefaults) -> Resampling:
    number = str(file.integer("resample", defaults.resampling))
    return lookup(RESAMPLINGS, number, f"{file.origin}: resample")


def read_image_processor(folder: HuggingFaceFolder, num_channels: int) -> ImageProcessor:
    """The image processor of ``folder``.

    Raises:
        SourceError: the file is missing or damaged.
        UnsupportedError: the class is unknown, or keeps a picture's size.
    """
    file = _file(folder)
    defaults = _defaults(file, folder.config)
    check_supported(file, do_resize=(True,), do_pad=(False,))
    if num_channels == 1:
        check_supported(file, do_convert_rgb=(False,))
    resize = _size(file, "size", defaults.resize, defaults.is_square)
    crop: Resize | None = None
    if file.flag("do_center_crop", defaults.crop is not None):
        crop = _size(file, "crop_size", defaults.crop, is_square=True)
    final = resize if crop is None else crop
    if isinstance(final, int):
        raise UnsupportedError(f"{file.origin}: size and crop_size leave the width open")
    mean, deviation = _normalisation(file, defaults, num_channels)
    return ImageProcessor(
        resize=(resize, resize) if isinstance(resize, int) else resize,
        keeps_aspect_ratio=isinstance(resize, int),
        resampling=_resampling(file, defaults),
        height=final[0],
        width=final[1],
        mean=mean,
        deviation=deviation,
    )


def _file(folder: HuggingFaceFolder) -> Fields:
    whole = folder.read_json(WHOLE_PROCESSOR_FILE)
    if isinstance(whole, dict) and IMAGE_PROCESSOR in whole:
        return Fields(whole, WHOLE_PROCESSOR_FILE).fields(IMAGE_PROCESSOR)
    value = folder.read_json(PROCESSOR_FILE)
    if not isinstance(value, dict):
        raise SourceError(
            f"{folder.path}: no {PROCESSOR_FILE}: save the model's image processor beside it"
        )
    return Fields(value, PROCESSOR_FILE)


def _defaults(file: Fields, config: Fields) -> ProcessorDefaults:
    """The defaults of the class that the file names, else of the model's usual class."""
    for field in ("image_processor_type", "feature_extractor_type"):
        name = file.text(field, "")
        if name:
            return lookup(PROCESSORS, ENDINGS.sub("", name), f"{file.origin}: {field}")
    start = re.split("[_-]", config.text("model_type"))[0]
    return PROCESSORS[lookup(CLASSES, start, f"{config.origin}: model_type")]


def _size(file: Fields, name: str, default: Resize | None, is_square: bool) -> Resize:
    """Height and width, or the length of the shorter edge."""
    value = file.get(name)
    if value is None and default is not None:
        return (default, default) if is_square and isinstance(default, int) else default
    if isinstance(value, dict):
        sizes = file.fields(name)
        check_supported(sizes, longest_edge=(None,), max_height=(None,), max_width=(None,))
        if sizes.get("shortest_edge") is not None:
            return sizes.positive("shortest_edge", maximum=MAX_IMAGE_SIDE)
        return (
            sizes.positive("height", maximum=MAX_IMAGE_SIDE),
            sizes.positive("width", maximum=MAX_IMAGE_SIDE),
        )
    if isinstance(value, list) and len(value) == 2:
        height, width = (
            Fields({name: side}, file.origin).positive(name, maximum=MAX_IMAGE_SIDE)
            for side in value
        )
        return height, width
    size = file.positive(name, maximum=MAX_IMAGE_SIDE)
    return (size, size) if is_square else size


def _normalisation(
    file: Fields, defaults: ProcessorDefaults, num_channels: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation per channel, for values divided by 255."""
    scale = file.number("rescale_factor", 1 / MAX_PIXEL) if file.flag("do_rescale", True) else 1.0
    mean, deviation = [0.0] * num_channels, [1.0] * num_channels
    if file.flag("do_normalize", True):
        mean = _channels(file, "image_mean", defaults.mean, num_channels)
        deviation = _channels(file, "image_std", defaults.deviation, num_channels)
    if not scale > 0 or not all(value > 0 for value in deviation):
        raise SourceError(f"{file.origin}: rescale_factor and image_std must be positive")
    values = MAX_PIXEL * scale  # the brightest pixel's values, before the mean is subtracted
    return tuple(x / values for x in mean), tuple(x / values for x in deviation)


def _channels(
    file: Fields, name: str, default: tuple[float, ...], num_channels: int
) -> list[float]:
    values = file.get(name)
    values = list(default[:num_channels]) if values is None else values
    values = [values] * num_channels if isinstance(values, int | float) else values
    if not isinstance(values, list) or len(values) != num_channels:
        raise SourceError(
            f"{file.origin}: {name} is not a number for each of {num_channels} channels"
        )
    return [Fields({name: value}, file.origin).number(name) for value in values]
