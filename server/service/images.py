"""Decodes a request's images and resizes them to the model's input format.

:mod:`server.service.image_sources` and :mod:`server.service.chat_images` do so for Generate.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

from msgspec.structs import replace
from PIL.Image import Image

from model.bundle import ImageSpec
from model.images import ImageError, Pixels, open_image, to_pixels
from server.bounds import MAX_IMAGE_BYTES, MAX_IMAGE_PIXELS, MAX_REQUEST_PIXELS
from server.engine.requests.job import EncodingJob
from server.errors import InvalidArgumentError
from server.models.registry import Model
from server.printable import counted
from server.service.encoder_call import EncoderCall
from server.service.prepared_inputs import PreparedInputs
from server.service.threads import Slice, slices_of
from server.service.truncation import Truncation
from server.service.usage import Usage

T = TypeVar("T")

# Reading an image's header has this cost: see :mod:`server.service.threads`.
_HEADER_COST = 256
# Decoding and resizing this many pixels costs 1.
_PIXELS_PER_UNIT = 64


async def prepare_images(images: Sequence[bytes], call: EncoderCall) -> PreparedInputs:
    """Prepares images as inputs, one input per image.

    Raises:
        ServeError: see :func:`decode_images`; or the model takes a text with each image.
    """
    spec = image_spec(call.model)
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
        adapter=call.model.adapter,
    )
    return PreparedInputs(
        jobs=[[replace(job, image=pixels)] for pixels in await decode_images(images, call)],
        usages=[Usage(input_tokens=spec.num_tokens)] * len(images),
        truncations=[Truncation(truncated_tokens=0, windows=1)] * len(images),
    )


async def add_images(
    texts: PreparedInputs, images: Sequence[bytes], call: EncoderCall
) -> PreparedInputs:
    """Adds an image to each of the tokenized texts, which have one window each.

    Raises:
        ServeError: see :func:`decode_images`; or there are not as many images as texts.
    """
    if len(images) != len(texts.jobs):
        raise InvalidArgumentError(
            "images", f"{len(images)} given for {counted(len(texts.jobs), 'text')}, each needs one"
        )
    size = image_spec(call.model).num_tokens
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
    """Decodes images and resizes them to the input format of the call's model.

    Headers are read first; no image is decoded if one of them is too large.

    Raises:
        InvalidArgumentError: the model takes no images, or see :func:`header_slices`,
            :func:`check_pixels` and :func:`pixel_slices`.
        ServeError: the queue is full, or the deadline passed.
    """
    files, spec = image_paths(images), image_spec(call.model)
    opened = in_order(await call.prepare(len(images), header_slices(files)))
    check_pixels(opened, "images")
    slices = pixel_slices(files, opened, partial(to_pixels, spec=spec))
    return await call.prepare(len(images), slices)


def image_paths(images: Sequence[bytes]) -> dict[str, bytes]:
    """The files of the field ``images`` by their paths, for errors."""
    return {f"images[{index}]": data for index, data in enumerate(images)}


def check_sizes(files: Mapping[str, bytes]) -> None:
    """Rejects files, by path, that are too large; ``check_fields`` does so for ``images``."""
    for path, data in files.items():
        if len(data) > MAX_IMAGE_BYTES:
            raise InvalidArgumentError(path, f"has more than {MAX_IMAGE_BYTES} bytes")


def header_slices(files: Mapping[str, bytes]) -> list[Slice[Sequence[Image]]]:
    """The work that reads the headers of ``files``, by path, in :data:`model.images.FORMATS`.

    It raises ``InvalidArgumentError``, which names the path, if one is damaged or too large.
    """
    items = list(files.items())

    def open_some(start: int, stop: int) -> Sequence[Image]:
        return [_open(data, path) for path, data in items[start:stop]]

    return slices_of([_HEADER_COST] * len(items), open_some)


def in_order(parts: Iterable[Sequence[Image]]) -> list[Image]:
    """The images that :func:`header_slices` opened."""
    return [image for part in parts for image in part]


def check_pixels(images: Iterable[Image], field: str) -> None:
    """Rejects a request whose opened images have too many pixels together."""
    num_pixels = sum(image.width * image.height for image in images)
    if num_pixels > MAX_REQUEST_PIXELS:
        raise InvalidArgumentError(
            field, f"have {num_pixels} pixels, at most {MAX_REQUEST_PIXELS} are accepted"
        )


def pixel_slices(
    paths: Iterable[str], opened: Iterable[Image], decode: Callable[[Image], T]
) -> list[Slice[T]]:
    """The work that decodes and resizes the ``opened`` images.

    It raises ``InvalidArgumentError``, which names the path, if ``decode`` raises ``ImageError``.
    """
    return [_slice(image, path, decode) for path, image in zip(paths, opened, strict=True)]


def image_spec(model: Model) -> ImageSpec:
    """The model's image format.

    Raises:
        InvalidArgumentError: the model takes no images.
    """
    manifest = model.manifest
    if manifest.image is None:
        taken = "texts" if manifest.audio is None else "recordings"
        raise InvalidArgumentError("images", f"{manifest.name!r} takes {taken}, not images")
    return manifest.image


@asynccontextmanager
async def reserved(images: Sequence[bytes], call: EncoderCall) -> AsyncIterator[None]:
    """Reserves the memory of the decoded ``images`` for the block that prepares and runs them.

    Raises:
        ServeError: the model takes no images, or too much memory is in use.
    """
    if not images:
        yield
        return
    num_bytes = len(images) * image_spec(call.model).num_bytes
    memory, client = call.context.decoded_memory, call.caller.client
    with await call.enter(lambda: memory.reserve(num_bytes, client, "images")):
        yield


def check_given(call: EncoderCall, *inputs: Sequence[object]) -> None:
    """Rejects a request without inputs to a model that takes only images, or only recordings."""
    if not any(inputs) and not call.model.manifest.reads_texts:
        field = "images" if call.model.manifest.audio is None else "audio"
        raise InvalidArgumentError(field, "must not be empty")


def check_alone(what: str = "images", **others: object) -> None:
    """Rejects request fields that do not apply to images: texts, and options of texts.

    ``what`` names other inputs than images in errors.

    Raises:
        InvalidArgumentError: one of ``others`` is set; the error names the first.
    """
    for name, value in others.items():
        if value is not None and value != ():
            raise InvalidArgumentError(name, f"does not apply to {what}")


def _open(data: bytes, path: str) -> Image:
    try:
        image = open_image(data)
    except ImageError as error:
        raise InvalidArgumentError(path, f"the image {error}") from error
    num_pixels = image.width * image.height
    if num_pixels > MAX_IMAGE_PIXELS:
        raise InvalidArgumentError(
            path, f"has {num_pixels} pixels, at most {MAX_IMAGE_PIXELS} are accepted"
        )
    return image


def _slice(image: Image, path: str, decode: Callable[[Image], T]) -> Slice[T]:
    def decoded() -> T:
        try:
            return decode(image)
        except ImageError as error:
            raise InvalidArgumentError(path, f"the image {error}") from error

    return Slice(image.width * image.height // _PIXELS_PER_UNIT, decoded)
