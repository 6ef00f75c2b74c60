"""From generation requests to jobs: checked, tokenized, with their limits."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from model.bundle import Task
from model.config import Kind
from protos.triune.v1 import inference_pb2 as pb
from server.engine.decoding.logits_processors import Constraint
from server.engine.decoding.options import Beams, LogitsOptions, LogprobOptions, Sampling
from server.engine.requests.sequence import GenerationJob
from server.errors import InvalidArgumentError
from server.models.registry import Model
from server.service import options as checked
from server.service import validation
from server.service.attention import AttentionWanted, attention_wanted, check_size
from server.service.caller import Caller
from server.service.context import Services
from server.service.languages import target_start, with_source_language
from server.service.time_limit import finish_by
from server.text.grammar import GrammarError

GenerateRequest = pb.GenerateRequest | pb.GenerateStreamRequest
TranslateRequest = pb.TranslateRequest | pb.TranslateStreamRequest


@dataclass(frozen=True, slots=True)
class ForcedPrefix:
    """What an output begins with before anything is generated: ``echo``, then a forced prefix.

    ``source_text``: of an encoder-decoder.
    """

    echo: str = ""
    prefix: tuple[int, ...] = ()
    source_text: str = ""


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A checked request: one job per input, how its text begins, and how it ends."""

    model: Model
    client: str
    jobs: list[GenerationJob]
    openings: list[ForcedPrefix]
    stop_strings: tuple[str, ...]
    wants_token_ids: bool
    wants_logprobs: bool
    attention: AttentionWanted | None
    started: float  # seconds, of time.monotonic
    tokenize_seconds: float

    @property
    def wants_tokens(self) -> bool:
        """Whether a piece without text, but with tokens, is worth sending."""
        return self.wants_token_ids or self.wants_logprobs

    @property
    def num_hypotheses(self) -> int:
        return self.jobs[0].num_outputs


@dataclass(frozen=True, slots=True)
class _Options:
    """What all outputs of a request share, checked once."""

    model: Model
    client: str
    sampling: Sampling
    logits_options: LogitsOptions
    beams: Beams | None
    num_outputs: int
    alternatives: bool
    constraint: Constraint | None
    logprob_options: LogprobOptions
    max_new_tokens: int | None
    stop_strings: tuple[str, ...]
    eos: frozenset[int]
    priority: int
    deadline: float | None
    finish_by: float | None

    def job(
        self, index: int, prompt: tuple[int, ...], source: tuple[int, ...], max_new_tokens: int
    ) -> GenerationJob:
        """One input's job. Each output draws from its own seed, counted from the request's."""
        seed = self.sampling.seed
        first = None if seed is None else seed + index * self.num_outputs
        return GenerationJob(
            prompt=prompt,
            max_new_tokens=max_new_tokens,
            source=source,
            eos=self.eos,
            sampling=replace(self.sampling, seed=first),
            logits_options=self.logits_options,
            beams=self.beams,
            num_outputs=self.num_outputs,
            alternatives=self.alternatives,
            constraint=self.constraint,
            logprob_options=self.logprob_options,
            priority=self.priority,
            deadline=self.deadline,
            finish_by=self.finish_by,
        )


async def prepare_generate(
    request: GenerateRequest, services: Services, caller: Caller
) -> PreparedRequest:
    """Jobs of a decoder, or of an encoder-decoder that answers a text with one.

    Raises ``InvalidArgumentError`` or ``ModelNotFoundError``.
    """
    started = time.monotonic()
    options = await _options(request, Task.GENERATE, services, caller, started)
    model = options.model
    field, prompts = await _prompts(request, model, services, caller)
    if request.response.echo and field == "messages":
        raise InvalidArgumentError("response.echo", "is not available with messages")
    prefixes = await _prefixes(request, model, len(prompts), services, caller)
    if model.manifest.kind == Kind.ENCODER_DECODER:
        validation.check_lengths(field, prompts, model.max_length)
        jobs = _target_jobs(options, request, prompts, target_start(model), prefixes)
        return _prepared(request, options, jobs, [""] * len(jobs), prefixes, started)
    whole = [(*prompt, *prefix) for prompt, prefix in zip(prompts, prefixes, strict=True)]
    validation.check_lengths(field, whole, model.max_length - 1)
    wanted = options.max_new_tokens or model.max_length
    jobs = [
        options.job(index, prompt, (), min(wanted, model.max_length - len(prompt)))
        for index, prompt in enumerate(whole)
    ]
    echoes = [""] * len(jobs)
    if request.response.echo:
        echoes = list(request.inputs) or [model.tokenizer.decode(prompt) for prompt in prompts]
    return _prepared(request, options, jobs, echoes, prefixes, started)


async def prepare_translate(
    request: TranslateRequest, services: Services, caller: Caller
) -> PreparedRequest:
    """Jobs of an encoder-decoder. Raises ``InvalidArgumentError`` or ``ModelNotFoundError``."""
    started = time.monotonic()
    options = await _options(request, Task.TRANSLATE, services, caller, started)
    model = options.model
    validation.check_texts(request.inputs, services.config.max_input_bytes)
    sources = await services.tokenized(
        request.inputs, lambda: model.tokenizer.encode(request.inputs), caller
    )
    validation.check_lengths("inputs", sources, model.max_length)
    prefixes = await _prefixes(request, model, len(sources), services, caller)
    start = target_start(model, request.target_language)
    sources = [with_source_language(model, request.source_language, row) for row in sources]
    jobs = _target_jobs(options, request, sources, start, prefixes)
    return _prepared(request, options, jobs, [""] * len(jobs), prefixes, started)


def _target_jobs(
    options: _Options,
    request: GenerateRequest | TranslateRequest,
    sources: Sequence[tuple[int, ...]],
    start: tuple[int, ...],
    prefixes: Sequence[tuple[int, ...]],
) -> list[GenerationJob]:
    """Jobs of an encoder-decoder, whose targets begin with ``start`` and the caller's prefixes."""
    model = options.model
    if request.response.echo:
        raise InvalidArgumentError("response.echo", "is not available with an encoder-decoder")
    # Without a bound of the caller's, a multiple of the source's length.
    factor = model.manifest.max_length_factor or math.inf
    jobs = []
    for index, (source, prefix) in enumerate(zip(sources, prefixes, strict=True)):
        prompt = (*start, *prefix)
        validation.check_lengths("decoding.target_prefix", [prompt], model.max_length - 1)
        wanted = options.max_new_tokens or factor * len(source)
        limit = math.ceil(min(wanted, model.max_length - len(prompt)))
        jobs.append(options.job(index, prompt, source, limit))
    return jobs


async def _options(
    request: GenerateRequest | TranslateRequest,
    task: Task,
    services: Services,
    caller: Caller,
    started: float,
) -> _Options:
    model = services.registry.get(request.model, request.version)
    validation.check_task(model, task)
    sampling, decoding, stopping = request.sampling, request.decoding, request.stopping
    vocabulary_size = model.manifest.dimensions.vocabulary_size
    drawing = checked.sampling(sampling)
    beams = checked.beams(drawing, decoding)
    num_outputs = checked.num_outputs(drawing, beams, decoding, services.config.num_slots)
    num_rows = num_outputs if beams is None else beams.size
    services.engine.check(model.key, num_rows * max(len(request.inputs), 1))
    max_new_tokens = checked.max_new_tokens(stopping)
    eos = checked.end_tokens(stopping, model.manifest.special_tokens.eos, vocabulary_size)

    def adjust() -> LogitsOptions:
        return checked.logits_options(
            sampling,
            decoding,
            stopping,
            vocabulary_size,
            lambda texts: model.tokenizer.encode(texts, special_tokens=False),
        )

    return _Options(
        model=model,
        client=caller.client,
        sampling=drawing,
        logits_options=await services.in_thread(adjust, caller) if decoding.bad_words else adjust(),
        beams=beams,
        num_outputs=num_outputs,
        alternatives=decoding.alternatives and num_outputs > 1,
        constraint=await _constraint(request, model, services, caller),
        logprob_options=checked.logprob_options(request.response, beams),
        max_new_tokens=max_new_tokens,
        stop_strings=checked.stop_strings(stopping),
        eos=eos,
        priority=checked.priority(request.priority),
        deadline=caller.deadline,
        finish_by=finish_by(stopping, started, caller.deadline),
    )


async def _constraint(
    request: GenerateRequest | TranslateRequest, model: Model, services: Services, caller: Caller
) -> Constraint | None:
    grammar = checked.grammar(request.decoding, request.stopping)
    if grammar is None:
        return None
    try:
        return await services.in_thread(lambda: model.grammars.compile(grammar), caller)
    except GrammarError as error:
        raise InvalidArgumentError(f"decoding.grammar.{grammar.kind}", str(error)) from error


async def _prefixes(
    request: GenerateRequest | TranslateRequest,
    model: Model,
    count: int,
    services: Services,
    caller: Caller,
) -> list[tuple[int, ...]]:
    texts = checked.target_prefixes(request.decoding, count)
    if not any(texts):
        return [()] * count
    return await services.tokenized(
        texts, lambda: model.tokenizer.encode(texts, special_tokens=False), caller
    )


def _prepared(
    request: GenerateRequest | TranslateRequest,
    options: _Options,
    jobs: list[GenerationJob],
    echoes: list[str],
    prefixes: Sequence[tuple[int, ...]],
    started: float,
) -> PreparedRequest:
    texts = list(request.inputs) or [""] * len(jobs)
    attention = attention_wanted(request.response, options.model)
    if attention is not None:
        check_size(attention, jobs)
    return PreparedRequest(
        options.model,
        options.client,
        jobs,
        [
            ForcedPrefix(echo, prefix, text)
            for echo, prefix, text in zip(echoes, prefixes, texts, strict=True)
        ],
        options.stop_strings,
        request.response.token_ids,
        request.response.logprobs,
        attention,
        started,
        time.monotonic() - started,
    )


async def _prompts(
    request: GenerateRequest, model: Model, services: Services, caller: Caller
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
        return "inputs", await services.tokenized(
            request.inputs, lambda: model.tokenizer.encode(request.inputs), caller
        )
    template = model.chat_template
    if template is None:
        raise InvalidArgumentError("messages", f"{request.model!r} has no chat template")
    messages = validation.messages(request.messages, max_bytes)

    def render() -> list[tuple[int, ...]]:
        return model.tokenizer.encode([template.render(messages)], special_tokens=False)

    return "messages", await services.in_thread(render, caller)
