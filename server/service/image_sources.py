"""Images as the sources of Generate, for models that write texts about them."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from model.images import Pixels, to_pixels
from server.engine.requests.job import GenerationJob
from server.errors import InvalidArgumentError
from server.models.registry import Model
from server.service.caller import Caller
from server.service.context import ServiceContext
from server.service.generation_request import GenerateRequest
from server.service.images import (
    check_pixels,
    check_sizes,
    header_slices,
    image_paths,
    image_spec,
    in_order,
    pixel_slices,
)
from server.service.languages import target_start
from server.service.prepare import JobTemplate, prepared_request, target_jobs
from server.service.prepared_request import PreparedRequest
from server.service.target_prefixes import after_prefixes, target_prefix_ids
from server.service.validation import check_messages


def source_files(request: GenerateRequest, model: Model) -> dict[str, bytes]:
    """The images that are the request's sources, by path; empty if they are texts.

    They are ``images``, or the only part of the only message.

    Raises:
        InvalidArgumentError: the model does not read ``images``, or there is more than an image in
            the messages. The error names the field.
    """
    manifest, messages = model.manifest, request.messages
    if manifest.image_source is None:
        if request.images:
            taken = "images in messages" if manifest.image_prompt else "texts, not images"
            raise InvalidArgumentError("images", f"{manifest.name!r} takes {taken}")
        return {}
    parts = [
        (f"messages[{index}].parts[{place}]", part)
        for index, message in enumerate(messages)
        for place, part in enumerate(message.parts)
    ]
    files = {f"{path}.image": part.image for path, part in parts if part.image is not None}
    if not files:
        return image_paths(request.images)
    for path, part in parts:
        if part.text is not None:
            raise InvalidArgumentError(
                f"{path}.text", f"{manifest.name!r} takes an image alone: leave the text out"
            )
    if len(messages) > 1 or len(files) > 1:
        raise InvalidArgumentError("messages", f"{manifest.name!r} takes one with one image")
    check_sizes(files)
    return files


async def prepare_images(
    files: Mapping[str, bytes],
    request: GenerateRequest,
    template: JobTemplate,
    context: ServiceContext,
    caller: Caller,
    started: float,
    memory: ExitStack,
) -> PreparedRequest:
    """Decodes the request's images; each is the source of a job.

    ``files`` are those of :func:`source_files`. ``memory`` then holds what is reserved for them.

    Raises:
        ServeError: an image or option is invalid, the deadline passed, or too much work is waiting.
    """
    model = template.model
    _check_options(request)
    if request.messages:
        check_messages(request.messages, context.config.max_input_bytes)
    field = "images" if request.images else "messages"
    num_bytes = len(files) * image_spec(model).num_bytes
    memory.enter_context(context.decoded_memory.reserve(num_bytes, caller.client, field))
    opened = in_order(await context.run_slices(header_slices(files), caller))
    check_pixels(opened, field)
    slices = pixel_slices(files, opened, partial(to_pixels, spec=image_spec(model)))
    images = await context.run_slices(slices, caller)
    prefixes = await target_prefix_ids(request, model, len(images), context, caller)
    sources = [()] * len(images)
    jobs = target_jobs(template, request, sources, target_start(model), prefixes)
    jobs = await after_prefixes(
        _with_images(jobs, images, model), prefixes, request, context, caller
    )
    return prepared_request(request, model, caller, jobs, prefixes, started)


def _check_options(request: GenerateRequest) -> None:
    """Rejects tools, and options that need the tokens of a source."""
    attention = request.response.attention
    if request.chat.offered:
        raise InvalidArgumentError("tools", "do not apply to images")
    if request.logits.encoder_no_repeat_ngram_size:
        raise InvalidArgumentError("encoder_no_repeat_ngram_size", "does not apply to images")
    if attention is not None and attention.alignments:
        raise InvalidArgumentError("attention.alignments", "do not apply to images")


def _with_images(
    jobs: Sequence[GenerationJob], images: Sequence[Pixels], model: Model
) -> list[GenerationJob]:
    num_tokens = image_spec(model).num_tokens
    return [
        replace(job, image=image, num_image_tokens=num_tokens)
        for job, image in zip(jobs, images, strict=True)
    ]
