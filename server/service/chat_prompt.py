"""The prompt of a conversation: checked, rendered by the model's chat template, and tokenized."""

from collections.abc import Sequence
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
) -> tuple[Sequence[tuple[int, ...]], ChatImages]:
    """The token ids of the only prompt, and its images, for which ``memory`` is reserved.

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
    num_characters += sum(len(message.text) + len(message.reasoning) + 256 for message in messages)
    images = await read_images(messages, model, context, caller, memory)
    num_characters += sum(map(len, images.texts))

    def render() -> list[tuple[int, ...]]:
        prompt = template.render(messages, options)
        prompt = with_image_texts(prompt, images, model.manifest.image_prompt)
        return model.tokenizer.encode([prompt], special_tokens=_adds_special_tokens(prompt, model))

    return await context.in_thread(render, caller, num_characters), images


def _adds_special_tokens(prompt: str, model: Model) -> bool:
    """Whether the tokenizer adds its special tokens to a chat prompt.

    As in ``transformers``: tokenizers never add any, processors of texts and images do unless the
    template wrote the first.
    """
    bos = model.manifest.special_tokens.bos
    if model.manifest.image_prompt is None:
        return False
    return bos is None or not prompt.startswith(model.tokenizer.tokens([bos])[0])
