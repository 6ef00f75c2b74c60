"""Images of a request: decoded and resized as the model's graph takes them."""

from collections.abc import Sequence

from PIL.Image import Image

from model.bundle import ImageSpec
from model.images import ImageError, Pixels, open_image, to_pixels
from server.bounds import MAX_IMAGE_PIXELS, MAX_REQUEST_PIXELS
from server.engine.requests.job import EncodingJob
from server.errors import InvalidArgumentError
from server.service.encoder_call import EncoderCall
from server.service.prepared_inputs import PreparedInputs
from server.service.threads import Slice, slices_of
from server.service.truncation import Truncation
from server.service.usage import Usage

# Bytes that take as long to tokenize as the header of an image to read, and the pixels of an image
# that are decoded and resized in the time of one.
_HEADER_BYTES = 256
_PIXELS_PER_BYTE = 64


async def prepare_images(images: Sequence[bytes], call: EncoderCall) -> PreparedInputs:
    """Decodes and resizes images.

    Headers are read first: no image is decoded if one of them is too large.

    Args:
        images: files in one of :data:`model.images.FORMATS`.
        call: of a model that takes images.

    Raises:
        InvalidArgumentError: names the image that is damaged or too large.
        ServeError: the queue is full, or the deadline passed.
    """
    spec = image_spec(call)

    def open_some(start: int, stop: int) -> list[Image]:
        return [_open(images[index], index) for index in range(start, stop)]

    headers = slices_of([_HEADER_BYTES] * len(images), open_some)
    opened = [image for part in await call.prepare(len(images), headers) for image in part]
    num_pixels = sum(image.width * image.height for image in opened)
    if num_pixels > MAX_REQUEST_PIXELS:
        raise InvalidArgumentError(
            "images", f"have {num_pixels} pixels, at most {MAX_REQUEST_PIXELS} are accepted"
        )
    pixels = await call.prepare(
        len(images), [_slice(image, index, spec) for index, image in enumerate(opened)]
    )
    return PreparedInputs(
        jobs=[[_job(each, spec, len(images), call)] for each in pixels],
        usages=[Usage(input_tokens=spec.num_tokens)] * len(images),
        truncations=[Truncation(truncated_tokens=0, windows=1)] * len(images),
    )


def _job(pixels: Pixels, spec: ImageSpec, num_images: int, call: EncoderCall) -> EncodingJob:
    return EncodingJob(
        (),
        is_bulk=call.is_bulk,
        deadline=call.caller.deadline,
        num_texts=num_images,
        image=pixels,
        num_image_tokens=spec.num_tokens,
    )


def image_spec(call: EncoderCall) -> ImageSpec:
    """What images the call's model takes.

    Raises:
        InvalidArgumentError: it takes none.
    """
    manifest = call.model.manifest
    if manifest.image is None:
        raise InvalidArgumentError("images", f"{manifest.name!r} takes texts, not images")
    return manifest.image


def check_alone(**others: object) -> None:
    """Rejects fields of a request beside its images: texts, and options of texts.

    Raises:
        InvalidArgumentError: names the first of ``others`` that is set.
    """
    for name, value in others.items():
        if value is not None and value != ():
            raise InvalidArgumentError(name, "does not apply to images")


def _open(data: bytes, index: int) -> Image:
    try:
        image = open_image(data)
    except ImageError as error:
        raise InvalidArgumentError(f"images[{index}]", f"the image {error}") from error
    num_pixels = image.width * image.height
    if num_pixels > MAX_IMAGE_PIXELS:
        raise InvalidArgumentError(
            f"images[{index}]", f"has {num_pixels} pixels, at most {MAX_IMAGE_PIXELS} are accepted"
        )
    return image


def _slice(image: Image, index: int, spec: ImageSpec) -> Slice[Pixels]:
    def decode() -> Pixels:
        try:
            return to_pixels(image, spec)
        except ImageError as error:
            raise InvalidArgumentError(f"images[{index}]", f"the image {error}") from error

    return Slice(image.width * image.height // _PIXELS_PER_BYTE, decode)
