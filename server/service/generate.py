"""The Generate call: continues prompts (decoder) or maps texts or images to texts."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from model.bundle import Task
from model.config import Kind
from server.engine.requests.job import Delivery
from server.errors import InvalidArgumentError
from server.models.registry import Model
from server.service import validation
from server.service.caller import Caller
from server.service.chat_images import NO_IMAGES, placed_images
from server.service.chat_prompt import chat_prompt
from server.service.context import ServiceContext
from server.service.generation_request import GenerateRequest
from server.service.image_sources import prepare_images, source_files
from server.service.languages import target_start
from server.service.prepare import job_template, prepared_request, target_jobs
from server.service.prepared_request import PreparedRequest
from server.service.reasoning import leaves_reasoning_open, opens_reasoning
from server.service.target_prefixes import after_prefixes, target_prefix_ids
from server.service.tool_calls import forces_call, with_forced_call
from server.text.chat import NO_OPTIONS

_INPUT_FIELDS = ("inputs", "token_inputs", "messages", "images")
_TAG_TOKENS = 8  # a tag and white space, in any vocabulary


async def prepare_generate(
    request: GenerateRequest,
    context: ServiceContext,
    caller: Caller,
    delivery: Delivery,
    memory: ExitStack,
) -> PreparedRequest:
    """Validates and tokenizes a request.

    ``memory`` then holds what is reserved for decoded images: close it after the last output.

    Raises:
        ServeError: an option or input is invalid, the model is unknown, or its queue is full.
    """
    started = time.monotonic()
    num_inputs = len(request.inputs) + len(request.token_inputs) + len(request.images)
    request = with_forced_call(request)
    try:
        template = await job_template(
            request, Task.GENERATE, num_inputs, context, caller, started, delivery
        )
    except InvalidArgumentError as error:
        if forces_call(request.chat) and error.field.startswith("grammar"):
            raise InvalidArgumentError("tools", error.description) from error
        raise
    model = template.model
    field = _given_field(request)
    if files := source_files(request, model):
        return await prepare_images(files, request, template, context, caller, started, memory)
    validation.check_takes_texts(model, field)
    images = NO_IMAGES
    if field == "messages":
        prompts, images = await chat_prompt(
            *(request.messages, request.chat, model, context, caller, memory),
            template.max_new_tokens,
        )
    else:
        prompts = await _prompts(field, request, model, context, caller)
    if request.response.echo and field == "messages":
        raise InvalidArgumentError("echo", "is not available with messages")
    prefixes = await target_prefix_ids(request, model, len(prompts), context, caller)
    check_lengths = validation.check_lengths
    if len(request.messages) > 1:  # together they are too long
        check_lengths = validation.check_total_length
    if model.manifest.kind == Kind.ENCODER_DECODER:
        check_lengths(field, prompts, model.max_source_length)
        jobs = target_jobs(template, request, prompts, target_start(model), prefixes)
        jobs = await after_prefixes(jobs, prefixes, request, context, caller)
        prepared = prepared_request(request, model, caller, jobs, prefixes, started)
        return replace(prepared, chat=request.chat)
    whole = [(*prompt, *prefix) for prompt, prefix in zip(prompts, prefixes, strict=True)]
    check_lengths(field, whole, model.max_length - 1)
    wanted = template.max_new_tokens or model.max_length
    jobs = [
        template.job(index, prompt, min(wanted, model.max_length - len(prompt)))
        for index, prompt in enumerate(whole)
    ]
    jobs = await after_prefixes(jobs, prefixes, request, context, caller)
    spec = model.manifest.image
    if images.pixels and spec is not None and spec.prompt is not None:
        placed = placed_images(prompts[0], images, spec, spec.prompt)
        jobs = [replace(job, images=placed) for job in jobs]
    echoes: Sequence[str] = ()
    if request.response.echo:
        echoes = request.inputs or await context.build(
            sum(map(len, prompts)),
            lambda: [model.tokenizer.decode(prompt) for prompt in prompts],
            caller,
        )
    previous: Sequence[tuple[int, ...]] = ()
    goes_on = field != "messages" or request.chat.continue_final_message
    if goes_on and template.base.constraint is None:  # else the text stands alone
        previous = list(map(model.tokenizer.last_with_text, prompts))
    prepared = prepared_request(request, model, caller, jobs, prefixes, started, echoes, previous)
    is_open = request.chat.separate_reasoning and _begins_with_reasoning(request, model, prompts[0])
    return replace(prepared, chat=request.chat, begins_with_reasoning=is_open)


def _begins_with_reasoning(request: GenerateRequest, model: Model, prompt: tuple[int, ...]) -> bool:
    """Whether the output begins within reasoning."""
    if request.chat.continue_final_message and leaves_reasoning_open(request.messages[-1].text):
        return True
    return opens_reasoning(model.tokenizer.decode(prompt[-_TAG_TOKENS:]))


def _given_field(request: GenerateRequest) -> str:
    """The name of the input field that is set. Raises ``InvalidArgumentError`` unless one is."""
    given = [name for name in _INPUT_FIELDS if getattr(request, name)]
    if len(given) != 1:
        raise InvalidArgumentError(
            given[1] if given else "inputs",
            "exactly one of inputs, token_inputs, messages and images is required",
        )
    (field,) = given
    if request.chat != NO_OPTIONS and field != "messages":
        raise InvalidArgumentError("chat", "needs messages")
    if request.suffix and field != "inputs":
        raise InvalidArgumentError("suffix", "needs inputs that are texts")
    return field


async def _prompts(
    field: str, request: GenerateRequest, model: Model, context: ServiceContext, caller: Caller
) -> Sequence[tuple[int, ...]]:
    """The token ids of the prompts in ``field``: texts or token ids."""
    is_decoder = model.manifest.kind == Kind.DECODER
    longest = model.max_length if is_decoder else model.max_source_length
    if field == "token_inputs":
        size = model.manifest.dimensions.vocabulary_size
        validation.check_lengths("token_inputs", request.token_inputs, longest)
        num_ids = sum(map(len, request.token_inputs))
        check = partial(validation.check_token_inputs, request.token_inputs, size)
        await context.in_thread(check, caller, num_ids // 4)
        return request.token_inputs
    texts = _with_suffix(request, model, context.config.max_input_bytes)
    validation.check_texts(texts, context.config.max_input_bytes)
    # A decoder needs room for a new token.
    encode = partial(model.tokenizer.encode, max_tokens=longest - is_decoder)
    return await context.tokenize(texts, encode, caller)


def _with_suffix(request: GenerateRequest, model: Model, max_bytes: int) -> Sequence[str]:
    """The texts to tokenize: the inputs, each with the suffix if there is one.

    Raises:
        InvalidArgumentError: the model cannot fill in the middle of a text, or the texts would have
            more than ``max_bytes`` in all.
    """
    if not request.suffix:
        return request.inputs
    names = model.manifest.fill_in_middle
    if not names:
        reason = f"is not supported: {model.manifest.name!r} has no tokens for it"
        raise InvalidArgumentError("suffix", reason)
    if request.response.echo:
        raise InvalidArgumentError("echo", "is not available with suffix")
    num_bytes = len(request.inputs) * len(request.suffix.encode())
    if num_bytes + sum(len(text.encode()) for text in request.inputs) > max_bytes:
        raise InvalidArgumentError("suffix", f"with every input has more than {max_bytes} bytes")
    return [names.render(text, request.suffix) for text in request.inputs]
