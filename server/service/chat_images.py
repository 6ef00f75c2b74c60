"""Images in the messages of a chat: checked, decoded, and written into the prompt."""

import hashlib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from model.bundle import ImagePrompt, ImageSpec
from model.images import Pixels
from model.tiles import grid_of, text_of, to_tiles
from server.bounds import MAX_IMAGES
from server.engine.requests.job import PromptImage
from server.errors import ContextLengthError, InvalidArgumentError
from server.models.registry import Model
from server.printable import counted, quoted
from server.service.caller import Caller
from server.service.context import ServiceContext
from server.service.images import check_pixels, check_sizes, header_slices, in_order, pixel_slices
from server.text.chat import Message


@dataclass(frozen=True, slots=True)
class ChatImages:
    """The decoded images of a conversation.

    Attributes:
        texts: what the prompt has for each image, instead of the template's placeholder.
        pixels: of all images and their tiles, in the order of their tokens.
    """

    texts: Sequence[str] = ()
    pixels: Sequence[Pixels] = ()


NO_IMAGES = ChatImages()


async def read_images(
    messages: Sequence[Message],
    model: Model,
    context: ServiceContext,
    caller: Caller,
    memory: ExitStack,
) -> ChatImages:
    """Decodes the images of ``messages``. Their number, sizes and tokens are checked first.

    ``memory`` then holds what is reserved for them.

    Raises:
        InvalidArgumentError: the model reads no images; or an image is damaged or too large; or a
            text has the placeholder of images. The error names the part.
        ContextLengthError: the images have more tokens than the model reads.
        ServeError: too much memory is in use, or the deadline passed.
    """
    files = {
        f"messages[{index}].parts[{place}].image": part.image
        for index, message in enumerate(messages)
        for place, part in enumerate(message.parts)
        if part.image is not None
    }
    if not files:
        return NO_IMAGES
    spec, prompt = model.manifest.image, model.manifest.image_prompt
    if spec is None or prompt is None:
        name = model.manifest.name
        raise InvalidArgumentError(next(iter(files)), f"{name!r} reads no images in messages")
    if len(files) > MAX_IMAGES:
        raise InvalidArgumentError("messages", f"have {len(files)} images, at most {MAX_IMAGES}")
    token = model.tokenizer.tokens([prompt.token])[0]
    _check_texts(messages, (prompt.placeholder, token))
    check_sizes(files)
    opened = in_order(await context.run_slices(header_slices(files), caller))
    check_pixels(opened, "messages")
    num_images = sum(grid_of(*image.size, spec).num_images for image in opened)
    num_tokens, longest = spec.num_tokens * num_images, model.max_length - 1
    if num_tokens > longest:
        raise ContextLengthError(
            "messages", f"{counted(len(opened), 'image')} of {num_tokens} tokens: at most {longest}"
        )
    num_bytes = spec.num_bytes + 4 * spec.num_tokens * model.manifest.dimensions.hidden_size
    reserve = context.decoded_memory.reserve
    memory.enter_context(reserve(num_images * num_bytes, caller.client, "messages"))
    slices = pixel_slices(files, opened, lambda image: to_tiles(image, spec))
    pictures = await context.run_slices(slices, caller)
    return ChatImages(
        [text_of(picture.grid, prompt, token, spec.num_tokens) for picture in pictures],
        [image for picture in pictures for image in picture.images],
    )


def with_image_texts(rendered: str, images: ChatImages, prompt: ImagePrompt | None) -> str:
    """Replaces the placeholders that the chat template wrote by the texts of the images.

    Raises:
        InvalidArgumentError: there are not as many placeholders as images.
    """
    if prompt is None or not images.texts:
        return rendered
    first, *rest = rendered.split(prompt.placeholder)
    if len(rest) != len(images.texts):
        raise InvalidArgumentError(
            "messages",
            f"the chat template writes {counted(len(rest), 'image')} of {len(images.texts)}",
        )
    return first + "".join(text + after for text, after in zip(images.texts, rest, strict=True))


def placed_images(
    token_ids: Sequence[int], images: ChatImages, spec: ImageSpec, prompt: ImagePrompt
) -> tuple[PromptImage, ...]:
    """Finds the tokens of the images in a prompt.

    Raises:
        InvalidArgumentError: there are others, or they are not adjacent: a text has some of them.
    """
    size = spec.num_tokens
    places = [index for index, id_ in enumerate(token_ids) if id_ == prompt.token]
    starts = places[::size]
    if places != [start + offset for start in starts for offset in range(size)] or len(
        starts
    ) != len(images.pixels):
        raise InvalidArgumentError("messages", "have tokens of images in their texts")
    return tuple(
        PromptImage(start, size, pixels, _key(pixels))
        for start, pixels in zip(starts, images.pixels, strict=True)
    )


def _key(pixels: Pixels) -> int:
    """A hash of the pixels, as :class:`PromptImage` needs it: negative."""
    return -1 - int.from_bytes(hashlib.sha256(pixels.tobytes()).digest(), "big")


def _check_texts(messages: Sequence[Message], reserved: Sequence[str]) -> None:
    """Rejects texts that the prompt could not tell from an image."""
    for index, message in enumerate(messages):
        texts = {
            f"messages[{index}].content": message.content,
            f"messages[{index}].reasoning": message.reasoning,
        }
        for place, part in enumerate(message.parts):
            texts[f"messages[{index}].parts[{place}].text"] = part.text or ""
        for place, call in enumerate(message.tool_calls):
            texts[f"messages[{index}].tool_calls[{place}].arguments"] = call.arguments
        for path, text in texts.items():
            for name in reserved:
                if name in text:
                    raise InvalidArgumentError(path, f"contains {quoted(name)}, an image's token")
