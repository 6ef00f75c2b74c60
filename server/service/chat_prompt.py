"""The prompt of a conversation: checked, rendered by the model's chat template, and tokenized."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack

from model.config import Kind
from server.errors import InvalidArgumentError
from server.models.registry import Model
from server.service import validation
from server.service.caller import Caller
from server.service.chat_images import ChatImages, read_images, with_image_texts
from server.service.context import ServiceContext
from server.service.tool_calls import check_size
from server.text.chat import ChatOptions, Message


async def chat_prompt(
    messages: Sequence[Message],
    options: ChatOptions,
    model: Model,
    context: ServiceContext,
    caller: Caller,
    memory: ExitStack,
    max_new_tokens: int | None = None,
) -> tuple[Sequence[tuple[int, ...]], ChatImages]:
    """The token ids of the only prompt, and its images, for which ``memory`` is reserved.

    ``max_new_tokens`` is the room to leave by dropping messages, if ``options`` say so.

    Raises:
        ServeError: the model has no chat template, or its template does not describe the tools; a
            message is invalid; or the messages are too large.
    """
    template = model.chat_template
    if template is None:
        raise InvalidArgumentError("messages", f"{model.manifest.name!r} has no chat template")
    validation.check_messages(messages, context.config.max_input_bytes)
    if options.continue_final_message and model.manifest.kind != Kind.DECODER:
        raise InvalidArgumentError("continue_final_message", "needs a decoder")
    if options.offered and not template.describes_tools:
        raise InvalidArgumentError("tools", "are not described by this model's chat template")
    num_characters = check_size(options)
    images = await read_images(messages, model, context, caller, memory)
    num_characters += sum(map(len, images.texts))

    async def tokenize(kept: Sequence[Message]) -> list[tuple[int, ...]]:
        def render() -> list[tuple[int, ...]]:
            prompt = template.render(kept, options)
            prompt = with_image_texts(prompt, images, model.manifest.image_prompt)
            special_tokens = _adds_special_tokens(prompt, model)
            return model.tokenizer.encode([prompt], special_tokens=special_tokens)

        sizes = (len(message.text) + len(message.reasoning) + 256 for message in kept)
        return await context.in_thread(render, caller, num_characters + sum(sizes))

    prompts = await tokenize(messages)
    longest = _longest(model, max_new_tokens)
    if options.drop_oldest_messages and len(prompts[0]) > longest:
        prompts = await without_oldest(messages, tokenize, longest) or prompts
    return prompts, images


def _longest(model: Model, max_new_tokens: int | None) -> int:
    """The most tokens of a prompt that leaves room for ``max_new_tokens``.

    That room is at most, and without ``max_new_tokens``, a quarter of the model's length.
    """
    if model.manifest.kind != Kind.DECODER:
        return model.max_source_length
    room = model.max_length // 4
    return model.max_length - max(1, min(max_new_tokens or room, room))


async def without_oldest(
    messages: Sequence[Message],
    tokenize: Callable[[Sequence[Message]], Awaitable[list[tuple[int, ...]]]],
    longest: int,
) -> list[tuple[int, ...]] | None:
    """The longest prompt of at most ``longest`` tokens without the oldest messages.

    It begins with a message of the user, after those of the system. An image is not dropped.

    Returns:
        None if there is none.
    """
    others = [index for index, message in enumerate(messages) if message.role != "system"]
    with_image = (index for index in others if _has_image(messages[index]))
    last = next(with_image, len(messages))
    starts = [index for index in others[1:] if index <= last and messages[index].role == "user"]
    found = None
    low, high = 0, len(starts)
    while low < high:
        middle = (low + high) // 2
        start = starts[middle]
        system = [message for message in messages[:start] if message.role == "system"]
        prompts = await tokenize([*system, *messages[start:]])
        if len(prompts[0]) <= longest:
            found, high = prompts, middle
        else:
            low = middle + 1
    return found


def _has_image(message: Message) -> bool:
    return any(part.image is not None for part in message.parts)


def _adds_special_tokens(prompt: str, model: Model) -> bool:
    """Whether the tokenizer adds its special tokens to a chat prompt.

    As in ``transformers``: tokenizers never add any, processors of texts and images do unless the
    template wrote the first.
    """
    bos = model.manifest.special_tokens.bos
    if model.manifest.image_prompt is None:
        return False
    return bos is None or not prompt.startswith(model.tokenizer.tokens([bos])[0])
