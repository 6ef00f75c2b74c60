"""From generation requests to jobs: checked, tokenized, with their limits."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from model.bundle import Task
from protos.triune.v1 import inference_pb2 as pb
from server.engine.sequence import GenerationJob
from server.errors import InvalidArgumentError
from server.registry import Model
from server.rpc import validation
from server.rpc.context import Services

GenerateRequest = pb.GenerateRequest | pb.GenerateStreamRequest
TranslateRequest = pb.TranslateRequest | pb.TranslateStreamRequest


@dataclass(frozen=True, slots=True)
class Prepared:
    """A checked request: one job per output, and how its text ends."""

    model: Model
    jobs: list[GenerationJob]
    stop_strings: tuple[str, ...]
    wants_token_ids: bool
    started: float  # seconds, of time.monotonic
    tokenize_seconds: float


async def prepare_generate(
    request: GenerateRequest, services: Services, deadline: float | None
) -> Prepared:
    """Jobs of a decoder. Raises ``InvalidArgumentError`` or ``ModelNotFoundError``."""
    started = time.monotonic()
    model = services.registry.get(request.model, request.version)
    validation.check_task(model, Task.GENERATE)
    validation.sampling(request.sampling)
    validation.max_new_tokens(request.stopping)
    stops = validation.stop_strings(request.stopping)
    field, prompts = await _prompts(request, model, services)
    validation.check_lengths(field, prompts, model.max_length - 1)
    return Prepared(
        model,
        [
            _job(request, model, index, prompt, (), model.max_length - len(prompt), deadline)
            for index, prompt in enumerate(prompts)
        ],
        stops,
        request.response.token_ids,
        started,
        time.monotonic() - started,
    )


async def prepare_translate(
    request: TranslateRequest, services: Services, deadline: float | None
) -> Prepared:
    """Jobs of an encoder-decoder. Raises ``InvalidArgumentError`` or ``ModelNotFoundError``."""
    started = time.monotonic()
    model = services.registry.get(request.model, request.version)
    validation.check_task(model, Task.TRANSLATE)
    validation.sampling(request.sampling)
    validation.max_new_tokens(request.stopping)
    stops = validation.stop_strings(request.stopping)
    validation.check_texts(request.inputs, services.config.max_input_bytes)
    sources = await services.in_thread(lambda: model.tokenizer.encode(request.inputs))
    validation.check_lengths("inputs", sources, model.max_length)
    start = model.manifest.special_tokens.decoder_start
    if start is None:
        raise InvalidArgumentError("model", "its bundle names no decoder_start token")
    factor = model.manifest.max_length_factor
    limits = [
        model.max_length - 1
        if factor is None
        else min(model.max_length - 1, math.ceil(factor * len(source)))
        for source in sources
    ]
    return Prepared(
        model,
        [
            _job(request, model, index, (start,), source, limit, deadline)
            for index, (source, limit) in enumerate(zip(sources, limits, strict=True))
        ],
        stops,
        request.response.token_ids,
        started,
        time.monotonic() - started,
    )


async def _prompts(
    request: GenerateRequest, model: Model, services: Services
) -> tuple[str, Sequence[tuple[int, ...]]]:
    """The one field that was given, and its prompts' token ids."""
    given = [name for name in ("inputs", "token_inputs", "messages") if len(getattr(request, name))]
    if len(given) != 1:
        raise InvalidArgumentError(
            given[1] if given else "inputs",
            "exactly one of inputs, token_inputs and messages is needed",
        )
    if request.token_inputs:
        size = model.manifest.dimensions.vocabulary_size
        return "token_inputs", validation.token_inputs(request.token_inputs, size)
    max_bytes = services.config.max_input_bytes
    if request.inputs:
        validation.check_texts(request.inputs, max_bytes)
        return "inputs", await services.in_thread(lambda: model.tokenizer.encode(request.inputs))
    template = model.chat_template
    if template is None:
        raise InvalidArgumentError("messages", f"{request.model!r} has no chat template")
    messages = validation.messages(request.messages, max_bytes)

    def render() -> list[tuple[int, ...]]:
        return model.tokenizer.encode([template.render(messages)], special_tokens=False)

    return "messages", await services.in_thread(render)


def _job(
    request: GenerateRequest | TranslateRequest,
    model: Model,
    index: int,
    prompt: tuple[int, ...],
    source: tuple[int, ...],
    limit: int,
    deadline: float | None,
) -> GenerationJob:
    """One output's job. Of several, each draws from its own seed: ``seed + index``."""
    sampling = validation.sampling(request.sampling)
    if sampling.seed is not None:
        sampling = replace(sampling, seed=sampling.seed + index)
    wanted = validation.max_new_tokens(request.stopping)
    if source and wanted is not None:
        limit = model.max_length - 1
    eos = () if request.stopping.ignore_eos else model.manifest.special_tokens.eos
    return GenerationJob(
        prompt=prompt,
        max_new_tokens=limit if wanted is None else min(wanted, limit),
        source=source,
        eos=frozenset(eos),
        sampling=sampling,
        deadline=deadline,
    )
