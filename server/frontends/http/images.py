"""Images in JSON: files in base64 or as ``data:`` URLs. The server fetches no other URLs."""

import binascii
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from server.bounds import MAX_IMAGE_BYTES, MAX_IMAGES, MAX_TEXTS, Size
from server.errors import InvalidArgumentError
from server.frontends.http.endpoint import Call
from server.printable import quoted

# Base64 characters to decode at a time, a multiple of 4. A piece holds the interpreter lock for
# 0.2 ms.
_PIECE = 1 << 16
# Base64 characters that take as long to decode as one value of a reply takes to build.
_CHARACTERS_PER_VALUE = 128
_MAX_CHARACTERS = (MAX_IMAGE_BYTES + 2) // 3 * 4
_DATA_ADDRESS = re.compile(r"data:[^,]{0,256};base64,", re.IGNORECASE)
_ADDRESS = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]{0,31}):", re.IGNORECASE)


class ImageItem(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """An image as an input item, in Jina's format."""

    image: str


class ImageAddress(msgspec.Struct, kw_only=True):
    """The URL of an image; OpenAI's field ``detail`` is ignored."""

    url: str


class Part(msgspec.Struct, kw_only=True):
    """A part of a message: a text or an image."""

    type: str
    text: str | None = None
    image_url: ImageAddress | None = None


class ImageMessage(msgspec.Struct, kw_only=True):
    """A message with an image, in the format of vLLM's embed and classify routes."""

    role: str
    content: str | list[Part]


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """The images of a body, still encoded, and the text that accompanies them.

    ``images`` are base64 or ``data:`` URLs. ``field`` is the body's field that holds them, and
    ``path`` the path of each, with ``{}`` for its index, or a list of all paths. ``texts`` holds at
    most one text, the message's, whose path is ``text_path``.
    """

    images: Sequence[str]
    field: str
    path: str | Sequence[str]
    texts: tuple[str, ...] = ()
    text_path: str = ""

    async def files(self, call: Call[Any]) -> tuple[bytes, ...]:
        """Decodes the files. Checks sizes first; large base64 is decoded in a thread.

        Raises:
            InvalidArgumentError: there are too many images, or an image is too large, invalid
                base64 or another URL; the error names the image.
        """
        if len(self.images) > MAX_IMAGES:
            raise InvalidArgumentError(
                self.field, f"{len(self.images)} given, at most {MAX_IMAGES}"
            )
        starts = [_start(image, self._path(i)) for i, image in enumerate(self.images)]

        def decode() -> tuple[bytes, ...]:
            return tuple(
                decode_base64(image, start, self._path(index))
                for index, (image, start) in enumerate(zip(self.images, starts, strict=True))
            )

        num_values = sum(map(len, self.images)) // _CHARACTERS_PER_VALUE
        return await call.service.build(num_values, decode, call.caller)

    @contextmanager
    def named(self) -> Iterator[None]:
        """Renames the service's field in an error of the block, such as ``images[2]``."""
        try:
            yield
        except InvalidArgumentError as error:
            raise InvalidArgumentError(self._place(error.field), error.description) from None

    def _path(self, index: int) -> str:
        return self.path.format(index) if isinstance(self.path, str) else self.path[index]

    def _place(self, field: str) -> str:
        if not self.images:
            return field
        found = re.fullmatch(r"images\[(\d+)\]", field)
        if found is not None:
            return self._path(int(found[1]))
        if field == "images":
            return self.field
        return self.text_path if self.text_path and field in ("inputs", "inputs[0]") else field


def images_of(given: Any, messages: Sequence[ImageMessage] | None) -> Images:
    """The images of a body with the fields ``input`` and ``messages``; empty if it has texts.

    Args:
        given: the field ``input``: an :class:`ImageItem`, a list, or texts.
        messages: one user message with one image and at most one text.

    Raises:
        InvalidArgumentError: both fields or none are given, there are too many texts, images are
            mixed with texts, or the messages have another form.
    """
    if messages is not None:
        if given is not None:
            raise InvalidArgumentError("messages", "cannot be combined with input")
        return _image_of(messages)
    if given is None:
        raise InvalidArgumentError("input", "is required")
    if isinstance(given, ImageItem):
        return Images(images=[given.image], field="input", path="input.image")
    items = given if isinstance(given, list) else []
    if items and not isinstance(items[0], int):  # those are token ids
        Size(MAX_TEXTS).check_count("input", items)
    images = [item.image for item in items if isinstance(item, ImageItem)]
    if 0 < len(images) < len(items):
        is_image = isinstance(items[0], ImageItem)
        other = next(i for i, item in enumerate(items) if isinstance(item, ImageItem) != is_image)
        raise InvalidArgumentError(f"input[{other}]", "is of another type than the first")
    return Images(images=images, field="input", path="input[{}].image")


def _image_of(messages: Sequence[ImageMessage]) -> Images:
    if len(messages) != 1:
        raise InvalidArgumentError("messages", f"{len(messages)} given, not 1 with an image")
    (message,), content = messages, "messages[0].content"
    if message.role != "user":
        raise InvalidArgumentError("messages[0].role", f"{quoted(message.role)} is not user")
    if isinstance(message.content, str):
        raise InvalidArgumentError(content, "has no image: send texts as input")
    values: dict[str, str] = {}
    paths = {"image_url": content, "text": content}
    for index, part in enumerate(message.content):
        path = f"{content}[{index}]"
        if part.type not in paths:
            raise InvalidArgumentError(
                f"{path}.type", f"{quoted(part.type)} is neither image_url nor text"
            )
        if part.type in values:
            raise InvalidArgumentError(path, f"is another {part.type}, at most one is accepted")
        address = part.image_url
        value = part.text if part.type == "text" else None if address is None else address.url
        if value is None:
            raise InvalidArgumentError(f"{path}.{part.type}", "is required")
        values[part.type] = value
        paths[part.type] = f"{path}.{part.type}"
    if "image_url" not in values:
        raise InvalidArgumentError(content, "has no image: send texts as input")
    return Images(
        images=[values["image_url"]],
        field=paths["image_url"],
        path=f"{paths['image_url']}.url",
        texts=(values["text"],) if "text" in values else (),
        text_path=paths["text"],
    )


def _start(text: str, path: str) -> int:
    """The index at which an image's base64 begins. Checks its size."""
    data, address = _DATA_ADDRESS.match(text), _ADDRESS.match(text)
    start = 0 if data is None else data.end()
    if data is None and address is not None:
        if address["scheme"].lower() == "data":
            raise InvalidArgumentError(path, "is a data: address without base64")
        raise InvalidArgumentError(
            path,
            f"is an address ({address['scheme']}:), and the server fetches none: send the file in "
            "base64, or as a data: address",
        )
    if len(text) - start > _MAX_CHARACTERS:
        raise InvalidArgumentError(path, f"has more than {MAX_IMAGE_BYTES} bytes")
    return start


def decode_base64(text: str, start: int, path: str) -> bytes:
    """Decodes the base64 in ``text`` from index ``start``, piece by piece.

    Raises:
        InvalidArgumentError: it is not base64; the error names ``path``.
    """
    parts, end = [], len(text)
    for position in range(start, end, _PIECE):
        piece = text[position : position + _PIECE]
        try:
            if position + _PIECE < end and piece.endswith("="):
                raise ValueError("data after the padding")
            parts.append(binascii.a2b_base64(piece, strict_mode=True))
        except ValueError as error:
            raise InvalidArgumentError(path, f"is not base64: {str(error).lower()}") from None
    return b"".join(parts)
