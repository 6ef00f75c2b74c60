"""Images as the sources of Generate, for models that write texts about them."""

from collections.abc import Sequence
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


async def prepare_images(
    request: GenerateRequest,
    template: JobTemplate,
    context: ServiceContext,
    caller: Caller,
    started: float,
    memory: ExitStack,
) -> PreparedRequest:
    """Decodes the request's images; each is the source of a job.

    ``memory`` then holds what is reserved for them.

    Raises:
        ServeError: the model takes no images, an image or option is invalid, the deadline passed,
            or too much work is waiting.
    """
    model = template.model
    if model.manifest.image_source is None:
        taken = "texts, not images"
        if model.manifest.image_prompt is not None:
            taken = "images in messages"
        raise InvalidArgumentError("images", f"{request.model!r} takes {taken}")
    _check_no_source_text(request)
    num_bytes = len(request.images) * image_spec(model).num_bytes
    memory.enter_context(context.decoded_memory.reserve(num_bytes, caller.client, "images"))
    images = await _decode(request.images, model, context, caller)
    prefixes = await target_prefix_ids(request, model, len(images), context, caller)
    sources = [()] * len(images)
    jobs = target_jobs(template, request, sources, target_start(model), prefixes)
    jobs = await after_prefixes(
        _with_images(jobs, images, model), prefixes, request, context, caller
    )
    return prepared_request(request, model, caller, jobs, prefixes, started)


def _check_no_source_text(request: GenerateRequest) -> None:
    """Rejects options that need the tokens of a source."""
    attention = request.response.attention
    if request.logits.encoder_no_repeat_ngram_size:
        raise InvalidArgumentError("encoder_no_repeat_ngram_size", "does not apply to images")
    if attention is not None and attention.alignments:
        raise InvalidArgumentError("attention.alignments", "do not apply to images")


async def _decode(
    images: Sequence[bytes], model: Model, context: ServiceContext, caller: Caller
) -> list[Pixels]:
    """Headers are read first; no image is decoded if one of them is too large."""
    files = image_paths(images)
    opened = in_order(await context.run_slices(header_slices(files), caller))
    check_pixels(opened, "images")
    decode = partial(to_pixels, spec=image_spec(model))
    return await context.run_slices(pixel_slices(files, opened, decode), caller)


def _with_images(
    jobs: Sequence[GenerationJob], images: Sequence[Pixels], model: Model
) -> list[GenerationJob]:
    num_tokens = image_spec(model).num_tokens
    return [
        replace(job, image=image, num_image_tokens=num_tokens)
        for job, image in zip(jobs, images, strict=True)
    ]
