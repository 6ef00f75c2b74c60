"""Preprocessing against the image processors of transformers: the same pixels and normalisation."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers.image_utils import load_image
from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.deit.image_processing_pil_deit import DeiTImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from export.errors import ExportError, SourceError, UnsupportedError
from export.importers.vit_tables import read_patches
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.readers.image_processor import ImageProcessor, read_image_processor
from export.runtime import Floats
from model.bundle import ImageSpec
from model.image_config import image_spec
from model.images import decode_image

CLASSES: tuple[Any, ...] = (
    ViTImageProcessorPil,
    DeiTImageProcessorPil,
    CLIPImageProcessorPil,
    BitImageProcessorPil,
    SiglipImageProcessorPil,
)
ORIENTATION = 0x0112  # EXIF
TOLERANCE = 0.01  # of a pixel's level
SIDES = st.integers(1, 40)
# Whatever the size: the shorter edge or both sides, then perhaps a cut that may be larger.
SQUARE = st.fixed_dictionaries({"height": SIDES, "width": SIDES})
SIZES = st.one_of(
    st.fixed_dictionaries({"size": SQUARE, "do_center_crop": st.just(False)}),
    st.fixed_dictionaries(
        {
            "size": st.one_of(SIDES, SQUARE, st.builds(lambda n: {"shortest_edge": n}, SIDES)),
            "crop_size": st.one_of(SIDES, SQUARE),
            "do_center_crop": st.just(True),
        }
    ),
)
CHANNELS = st.lists(st.floats(0.1, 0.9), min_size=3, max_size=3)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "resample": st.integers(0, 5),
        "image_mean": CHANNELS,
        "image_std": CHANNELS,
        "do_normalize": st.booleans(),
        "do_rescale": st.booleans(),
        "rescale_factor": st.sampled_from([1 / 255, 1 / 127.5, 1 / 256]),
    },
)


def read(folder: Path, num_channels: int = 3, **config: Any) -> tuple[ImageProcessor, ImageSpec]:
    """The processor whose file is in ``folder``, and what a bundle says about it."""
    source = HuggingFaceFolder(
        path=folder,
        config=Fields({"model_type": "vit", **config}, "config.json"),
        generation_config=Fields({}, ""),
        weights={},
        chat_template=None,
        license="",
    )
    processor = read_image_processor(source, num_channels)
    shape = Fields(
        {
            "image_size": [processor.height, processor.width],
            "patch_size": 1,
            "num_channels": num_channels,
        },
        "config.json",
    )
    spec = image_spec(
        read_patches(shape, processor),
        processor.resize,
        processor.resampling,
        keeps_aspect_ratio=processor.keeps_aspect_ratio,
    )
    return processor, spec


def difference(folder: Path, theirs: Any, data: bytes, **options: Any) -> float:
    """The largest difference of a pixel, in levels, between the bundle's way and theirs."""
    (folder / "picture").write_bytes(data)
    processor, spec = read(folder, **options)
    picture = load_image(str(folder / "picture"))
    if spec.num_channels == 1:
        picture = picture.convert("L")
    expected: Floats = theirs(picture, return_tensors="np")["pixel_values"][0].transpose(1, 2, 0)
    pixels = decode_image(data, spec)
    actual = (pixels / 255 - processor.mean) / processor.deviation
    assert actual.shape == expected.shape
    return float(np.abs((actual - expected) * processor.deviation).max() * 255)


def encoded(picture: Image.Image, name: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, name, **options)
    return file.getvalue()


def random_picture(height: int, width: int, seed: int = 0) -> Image.Image:
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3)).astype(np.uint8))


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    class_=st.sampled_from(CLASSES),
    size=SIZES,
    options=OPTIONS,
    shape=st.tuples(st.integers(1, 90), st.integers(1, 90)),
)
def test_pixels_are_those_of_transformers(
    tmp_path: Path,
    class_: Any,
    size: dict[str, Any],
    options: dict[str, Any],
    shape: tuple[int, int],
) -> None:
    theirs = class_(**size, **options)
    theirs.save_pretrained(tmp_path)
    assert difference(tmp_path, theirs, encoded(random_picture(*shape))) <= TOLERANCE


@pytest.mark.parametrize("class_", CLASSES)
@pytest.mark.parametrize("shape", [(480, 640), (333, 200), (224, 224), (256, 256), (90, 50)])
def test_missing_fields_have_the_defaults_of_the_class(
    tmp_path: Path, class_: Any, shape: tuple[int, int]
) -> None:
    name = class_.__name__.removesuffix("Pil")
    old = name.replace("ImageProcessor", "FeatureExtractor")
    null = {"size": None, "crop_size": None, "image_mean": None, "resample": None}
    data = encoded(random_picture(*shape), "JPEG")
    for content in (
        {"image_processor_type": name},
        {"image_processor_type": f"{name}Fast", **null},
        {"feature_extractor_type": old},
    ):
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(content))
        assert difference(tmp_path, class_(), data) <= TOLERANCE


@pytest.mark.parametrize(
    ("model_type", "class_"),
    [
        ("vit", ViTImageProcessorPil),
        ("deit", DeiTImageProcessorPil),
        ("dinov2_with_registers", BitImageProcessorPil),
        ("clip_vision_model", CLIPImageProcessorPil),
        ("siglip_vision_model", SiglipImageProcessorPil),
    ],
)
def test_a_file_without_a_class_has_that_of_the_model(
    tmp_path: Path, model_type: str, class_: Any
) -> None:
    (tmp_path / "preprocessor_config.json").write_text("{}")
    data = encoded(random_picture(300, 260))
    assert difference(tmp_path, class_(), data, model_type=model_type) <= TOLERANCE


def test_the_image_processor_of_a_whole_processor_comes_first(tmp_path: Path) -> None:
    theirs = CLIPImageProcessorPil(size=20, crop_size=16)
    ViTImageProcessorPil().save_pretrained(tmp_path)
    (tmp_path / "processor_config.json").write_text('{"processor_class": "CLIPProcessor"}')
    assert read(tmp_path)[1].height == 224
    whole = {"image_processor": theirs.to_dict(), "processor_class": "CLIPProcessor"}
    (tmp_path / "processor_config.json").write_text(json.dumps(whole, default=tuple))
    assert difference(tmp_path, theirs, encoded(random_picture(30, 41))) <= TOLERANCE


def files() -> dict[str, bytes]:
    """Pictures of every mode and format."""
    picture = random_picture(37, 52)
    alpha = Image.fromarray(np.arange(37 * 52, dtype=np.uint8).reshape(37, 52))
    transparent = picture.copy()
    transparent.putalpha(alpha)
    frames = [picture, *(random_picture(37, 52, seed) for seed in (1, 2))]
    palette = picture.quantize(64)
    return {
        "bits": encoded(picture.convert("1")),
        "grey": encoded(picture.convert("L")),
        "grey with alpha": encoded(transparent.convert("LA")),
        "colours with alpha": encoded(transparent),
        "colours with alpha, WebP": encoded(transparent, "WEBP", lossless=True),
        "palette": encoded(palette),
        "palette with transparency": encoded(palette, transparency=3),
        "CMYK": encoded(picture.convert("CMYK"), "JPEG"),
        "progressive": encoded(picture, "JPEG", progressive=True),
        "BMP": encoded(picture, "BMP"),
        "animated GIF": encoded(picture, "GIF", save_all=True, append_images=frames[1:]),
        "animated PNG": encoded(picture, "PNG", save_all=True, append_images=frames[1:]),
    }


@pytest.mark.parametrize("mode", files())
@pytest.mark.parametrize("num_channels", [1, 3])
def test_every_mode_is_read_as_transformers_reads_it(
    tmp_path: Path, mode: str, num_channels: int
) -> None:
    theirs = ViTImageProcessorPil(
        size={"height": 20, "width": 24},
        image_mean=[0.4] * num_channels,
        image_std=[0.3] * num_channels,
    )
    theirs.save_pretrained(tmp_path)
    data = files()[mode]
    assert difference(tmp_path, theirs, data, num_channels=num_channels) <= TOLERANCE


@pytest.mark.parametrize("name", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_are_turned_upright(tmp_path: Path, name: str, orientation: int) -> None:
    theirs = CLIPImageProcessorPil(size=12, crop_size=16)
    theirs.save_pretrained(tmp_path)
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    data = encoded(random_picture(23, 31), name, exif=exif)
    assert difference(tmp_path, theirs, data) <= TOLERANCE


def test_grey_of_16_bits_is_that_of_8_bits(tmp_path: Path) -> None:
    ViTImageProcessorPil().save_pretrained(tmp_path)
    _, spec = read(tmp_path)
    grey = np.arange(240, dtype=np.uint8).reshape(12, 20)
    fine = Image.fromarray(grey.astype(np.uint16) * 257)
    expected = decode_image(encoded(Image.fromarray(grey)), spec)
    assert (decode_image(encoded(fine), spec) == expected).all()


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        ({"image_processor_type": "Siglip2ImageProcessor"}, UnsupportedError, "'Siglip2'"),
        ({"image_processor_type": "ViTHybridImageProcessor"}, UnsupportedError, "'ViTHybrid'"),
        ({"do_resize": False}, UnsupportedError, "do_resize False"),
        ({"do_pad": True}, UnsupportedError, "do_pad True"),
        ({"size": {"shortest_edge": 8}}, UnsupportedError, "leave the width open"),
        ({"size": {"shortest_edge": 8, "longest_edge": 9}}, UnsupportedError, "longest_edge 9"),
        ({"size": {"width": 8}}, SourceError, "size: height is missing"),
        ({"size": 5000}, SourceError, "size is 5000, not in 0 to 4096"),
        ({"size": [8, "x"]}, SourceError, "size is of type str"),
        ({"do_center_crop": True}, SourceError, "crop_size is missing"),
        ({"resample": 9}, UnsupportedError, "resample '9'"),
        ({"image_mean": [0.5]}, SourceError, "image_mean is not a number for each of 3 channels"),
        ({"image_std": [0.5, 0.5, 0.0]}, SourceError, "image_std must be positive"),
        ({"rescale_factor": 0}, SourceError, "must be positive"),
    ],
)
def test_unusable_fields_are_named(
    tmp_path: Path, content: dict[str, Any], error: type[ExportError], message: str
) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(content))
    with pytest.raises(error) as caught:
        read(tmp_path)
    assert message in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no preprocessor_config\.json"):
        read(tmp_path)


def test_a_processor_of_colours_is_refused_for_a_model_of_grey(tmp_path: Path) -> None:
    content = {"do_convert_rgb": True, "image_mean": 0.5, "image_std": 0.5}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(content))
    with pytest.raises(UnsupportedError, match="do_convert_rgb True"):
        read(tmp_path, num_channels=1)
