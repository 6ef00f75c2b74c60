"""Images of a request: decoded and resized as the model's graph takes them."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from msgspec.structs import replace
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
    """Images, each of which is an input.

    Raises:
        ServeError: as for :func:`decode_images`, or the model takes a text with each image.
    """
    spec = image_spec(call)
    if call.model.manifest.reads_texts:
        raise InvalidArgumentError(
            "inputs", f"{call.model.manifest.name!r} takes a text with each image"
        )
    job = EncodingJob(
        (),
        is_bulk=call.is_bulk,
        deadline=call.caller.deadline,
        num_texts=len(images),
        num_image_tokens=spec.num_tokens,
    )
    return PreparedInputs(
        jobs=[[replace(job, image=pixels)] for pixels in await decode_images(images, call)],
        usages=[Usage(input_tokens=spec.num_tokens)] * len(images),
        truncations=[Truncation(truncated_tokens=0, windows=1)] * len(images),
    )


async def add_images(
    texts: PreparedInputs, images: Sequence[bytes], call: EncoderCall
) -> PreparedInputs:
    """Tokenized texts of one window each, with the image of each.

    Raises:
        ServeError: as for :func:`decode_images`, or there are not as many images as texts.
    """
    if len(images) != len(texts.jobs):
        raise InvalidArgumentError(
            "images", f"{len(images)} given for {len(texts.jobs)} texts, each needs one"
        )
    size = image_spec(call).num_tokens
    pixels = await decode_images(images, call)
    return PreparedInputs(
        jobs=[
            [replace(job, image=image, num_image_tokens=size)]
            for (job,), image in zip(texts.jobs, pixels, strict=True)
        ],
        usages=[Usage(input_tokens=usage.input_tokens + size) for usage in texts.usages],
        truncations=texts.truncations,
    )


async def decode_images(images: Sequence[bytes], call: EncoderCall) -> list[Pixels]:
    """Decodes and resizes images as the call's model takes them.

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
    slices = [_slice(image, index, spec) for index, image in enumerate(opened)]
    return await call.prepare(len(images), slices)


def image_spec(call: EncoderCall) -> ImageSpec:
    """What images the call's model takes.

    Raises:
        InvalidArgumentError: it takes none.
    """
    manifest = call.model.manifest
    if manifest.image is None:
        raise InvalidArgumentError("images", f"{manifest.name!r} takes texts, not images")
    return manifest.image


@asynccontextmanager
async def reserved(images: Sequence[bytes], call: EncoderCall) -> AsyncIterator[None]:
    """Reserves the memory of ``images``, decoded, for the block that prepares and runs them.

    Raises:
        ServeError: the model takes no images, or they need more memory than there is.
    """
    if not images:
        yield
        return
    num_bytes = len(images) * image_spec(call).num_bytes
    memory, client = call.context.decoded_memory, call.caller.client
    with await call.enter(lambda: memory.reserve(num_bytes, client, "images")):
        yield


def check_given(call: EncoderCall, *inputs: Sequence[object]) -> None:
    """Rejects a request without any inputs to a model of images; others name ``inputs``."""
    if not any(inputs) and not call.model.manifest.reads_texts:
        raise InvalidArgumentError("images", "must not be empty")


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
