"""From generation requests to jobs: checked, tokenized, with their limits."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from model.bundle import Task
from protos.triune.v1 import inference_pb2 as pb
from server.engine.sequence import GenerationJob, Sampling
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


@dataclass(frozen=True, slots=True)
class _Options:
    """What all outputs of a request share, checked once."""

    model: Model
    sampling: Sampling
    max_new_tokens: int | None
    stop_strings: tuple[str, ...]
    eos: frozenset[int]
    deadline: float | None

    def job(
        self, index: int, prompt: tuple[int, ...], source: tuple[int, ...], max_new_tokens: int
    ) -> GenerationJob:
        """One output's job. Of several, each draws from its own seed: ``seed + index``."""
        seed = self.sampling.seed
        return GenerationJob(
            prompt=prompt,
            max_new_tokens=max_new_tokens,
            source=source,
            eos=self.eos,
            sampling=replace(self.sampling, seed=None if seed is None else seed + index),
            deadline=self.deadline,
        )


async def prepare_generate(
    request: GenerateRequest, services: Services, deadline: float | None
) -> Prepared:
    """Jobs of a decoder. Raises ``InvalidArgumentError`` or ``ModelNotFoundError``."""
    started = time.monotonic()
    options = _options(request, Task.GENERATE, services, deadline)
    model = options.model
    field, prompts = await _prompts(request, model, services)
    validation.check_lengths(field, prompts, model.max_length - 1)
    wanted = options.max_new_tokens or model.max_length
    jobs = [
        options.job(index, prompt, (), min(wanted, model.max_length - len(prompt)))
        for index, prompt in enumerate(prompts)
    ]
    return _prepared(request, options, jobs, started)


async def prepare_translate(
    request: TranslateRequest, services: Services, deadline: float | None
) -> Prepared:
    """Jobs of an encoder-decoder. Raises ``InvalidArgumentError`` or ``ModelNotFoundError``."""
    started = time.monotonic()
    options = _options(request, Task.TRANSLATE, services, deadline)
    model = options.model
    validation.check_texts(request.inputs, services.config.max_input_bytes)
    sources = await services.in_thread(lambda: model.tokenizer.encode(request.inputs))
    validation.check_lengths("inputs", sources, model.max_length)
    start = model.manifest.special_tokens.decoder_start
    if start is None:
        raise InvalidArgumentError("model", "its bundle names no decoder_start token")
    # Without a bound of the caller's, a multiple of the source's length.
    factor = model.manifest.max_length_factor or math.inf
    jobs = []
    for index, source in enumerate(sources):
        wanted = options.max_new_tokens or factor * len(source)
        limit = math.ceil(min(wanted, model.max_length - 1))
        jobs.append(options.job(index, (start,), source, limit))
    return _prepared(request, options, jobs, started)


def _options(
    request: GenerateRequest | TranslateRequest,
    task: Task,
    services: Services,
    deadline: float | None,
) -> _Options:
    model = services.registry.get(request.model, request.version)
    validation.check_task(model, task)
    eos = () if request.stopping.ignore_eos else model.manifest.special_tokens.eos
    return _Options(
        model=model,
        sampling=validation.sampling(request.sampling),
        max_new_tokens=validation.max_new_tokens(request.stopping),
        stop_strings=validation.stop_strings(request.stopping),
        eos=frozenset(eos),
        deadline=deadline,
    )


def _prepared(
    request: GenerateRequest | TranslateRequest,
    options: _Options,
    jobs: list[GenerationJob],
    started: float,
) -> Prepared:
    return Prepared(
        options.model,
        jobs,
        options.stop_strings,
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
