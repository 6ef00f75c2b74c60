"""Turns requests of Generate and Translate into engine jobs."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from model.bundle import Task
from model.shortlist import Shortlist
from server.bounds import MAX_BAD_WORD_TOKENS, MAX_REPLY_VALUES
from server.constraint import Constraint
from server.engine.decoding.bad_words import BadWordIds
from server.engine.requests.job import Candidates, Delivery, GenerationJob, TextEnd
from server.errors import InvalidArgumentError
from server.models.memory_ledger import with_planned_slots
from server.models.registry import Model
from server.service import generation_options as checks
from server.service import validation
from server.service.attention import check_attention_size, plan_attention
from server.service.caller import Caller
from server.service.context import ServiceContext
from server.service.generation_request import GenerationRequest
from server.service.prepared_request import ForcedPrefix, PreparedRequest
from server.service.threads import MAX_SLICE_COST
from server.service.time_limit import finish_by
from server.text.grammar import GrammarError
from server.text.stop_strings import stop_detector


@dataclass(frozen=True, slots=True)
class JobTemplate:
    """The job of a request, without its inputs.

    Attributes:
        model: the model that runs the jobs.
        base: the job, without prompt, source and number of new tokens.
        max_new_tokens: the request's limit; None for the model's default.
        shortlist: the tokens that a source allows; None for all.
    """

    model: Model
    base: GenerationJob
    max_new_tokens: int | None
    shortlist: Shortlist | None

    def job(
        self,
        index: int,
        prompt: tuple[int, ...],
        max_new_tokens: int,
        source: tuple[int, ...] = (),
    ) -> GenerationJob:
        """The job of input ``index``. Output ``i`` of the request uses seed ``seed + i``."""
        sampling = self.base.sampling
        if sampling.seed is not None:
            sampling = replace(sampling, seed=sampling.seed + index * self.base.num_outputs)
        return replace(
            self.base,
            prompt=prompt,
            max_new_tokens=max_new_tokens,
            source=source,
            sampling=sampling,
            candidates=self._candidates(prompt, source),
        )

    def _candidates(self, prompt: tuple[int, ...], source: tuple[int, ...]) -> Candidates | None:
        """The shortlist of ``source``, with all tokens that the request names."""
        if self.shortlist is None:
            return None
        biased = [id_ for id_, _ in self.base.logits_options.logit_bias]
        others = [*prompt, *self.base.eos, *biased]
        return Candidates(partial(self.shortlist.candidates, source, others))


async def job_template(
    request: GenerationRequest,
    task: Task,
    num_inputs: int,
    context: ServiceContext,
    caller: Caller,
    started: float,
    delivery: Delivery,
) -> JobTemplate:
    """Validates the model and all options of a request, and compiles its grammar.

    Raises:
        InvalidArgumentError: names the invalid option.
        ModelNotFoundError: no such model is served.
        OverloadedError: the model's queue is full.
    """
    model = context.model_of(request)
    validation.check_task(model, task)
    decoding, stopping = request.decoding, request.stopping
    vocabulary_size = model.manifest.dimensions.vocabulary_size
    sampling = checks.effective_sampling(request.sampling)
    beams = checks.beams_of(sampling, decoding)
    num_slots = with_planned_slots(context.config, model).num_slots
    num_outputs = checks.num_outputs_of(sampling, beams, decoding, num_slots)
    num_sequences = num_outputs if beams is None else beams.size
    context.engine.check(model.key, num_sequences * max(num_inputs, 1), caller.client)
    logits = checks.checked_logits_options(request.logits, vocabulary_size)
    checks.check_stopping(stopping, logits.min_new_tokens)
    logprobs = checks.logprob_options(request.response, beams)
    eos = checks.end_tokens(stopping, model.manifest.special_tokens.eos, vocabulary_size)
    bad_words = await _bad_word_ids(request, model, context, caller)
    base = GenerationJob(
        prompt=(),
        max_new_tokens=0,
        eos=eos,
        sampling=sampling,
        logits_options=replace(logits, bad_word_ids=bad_words),
        beams=beams,
        num_outputs=num_outputs,
        alternatives=decoding.alternatives and num_outputs > 1,
        constraint=await _constraint(request, model, context, caller),
        logprob_options=logprobs,
        priority=request.priority,
        deadline=caller.deadline,
        finish_by=finish_by(stopping, started, caller.deadline),
        cache_scope=context.cache_scope(caller),
        adapter=model.adapter,
        client=caller.client,
        # No token after a stop string is part of the output.
        delivery=Delivery.EACH if stopping.stop_strings else delivery,
    )
    shortlist = _shortlist(request, model, context)
    return JobTemplate(model, base, stopping.max_new_tokens, shortlist)


def _shortlist(
    request: GenerationRequest, model: Model, context: ServiceContext
) -> Shortlist | None:
    is_used = checks.uses_shortlist(
        request.decoding,
        has_shortlist=model.shortlist is not None,
        on_device=context.config.samples_on_device,
    )
    return model.shortlist if is_used else None


def target_jobs(
    template: JobTemplate,
    request: GenerationRequest,
    sources: Sequence[tuple[int, ...]],
    start: tuple[int, ...],
    prefixes: Sequence[tuple[int, ...]],
) -> list[GenerationJob]:
    """Jobs of an encoder-decoder. Each target begins with ``start``, then the target prefix.

    ``sources`` are empty for images.
    """
    model = template.model
    if request.response.echo:
        raise InvalidArgumentError("echo", "is not available with an encoder-decoder")
    # The default of max_new_tokens is a multiple of the source's length.
    factor = model.manifest.max_length_factor or math.inf
    prompts = [(*start, *prefix) for prefix in prefixes]
    given = prompts if len(request.decoding.target_prefix) > 1 else prompts[:1]
    validation.check_lengths("target_prefix", given, model.max_length - 1)
    jobs = []
    for index, (source, prompt) in enumerate(zip(sources, prompts, strict=True)):
        by_default = factor * len(source) if source else math.inf
        wanted = template.max_new_tokens or by_default
        limit = math.ceil(min(wanted, model.max_length - len(prompt)))
        jobs.append(template.job(index, prompt, limit, source))
    return jobs


def prepared_request(
    request: GenerationRequest,
    model: Model,
    caller: Caller,
    jobs: list[GenerationJob],
    prefixes: Sequence[tuple[int, ...]],
    started: float,
    echoes: Sequence[str] = (),
    previous: Sequence[tuple[int, ...]] = (),
) -> PreparedRequest:
    """Combines the request with its jobs.

    ``echoes``: the input texts to repeat, if requested. ``previous``: the tokens that each text
    continues, if it does.

    Raises:
        InvalidArgumentError: the prompts need too many log-probabilities or attention weights. An
            output has them all at its end, in a stream too.
    """
    num_top = jobs[0].logprob_options.prompt_logprobs
    if num_top is not None:
        num_values = sum(len(job.prompt) for job in jobs) * (1 + num_top)
        validation.check_reply(
            "prompt_logprobs", num_values, MAX_REPLY_VALUES, "log-probabilities of prompts"
        )
    texts = request.inputs or ("",) * len(jobs)
    previous = previous or ((),) * len(jobs)
    stops = request.stopping.stop_strings
    if stops and jobs[0].beams is not None:
        jobs = [
            replace(job, text_end=partial(_stop_detector, model, stops, prefix, before))
            for job, prefix, before in zip(jobs, prefixes, previous, strict=True)
        ]
    options = request.response.attention
    attention = None if options is None else plan_attention(options, model)
    if attention is not None:
        check_attention_size(attention, jobs)
    return PreparedRequest(
        model,
        caller.client,
        jobs,
        [
            ForcedPrefix(echo, token_ids, text, before)
            for echo, token_ids, text, before in zip(
                echoes or ("",) * len(jobs), prefixes, texts, previous, strict=True
            )
        ],
        stops,
        request.response.token_ids,
        request.response.logprobs,
        attention,
        started,
        time.monotonic() - started,
    )


def _stop_detector(
    model: Model, stops: Sequence[str], prefix: Sequence[int], previous: Sequence[int]
) -> TextEnd:
    return stop_detector(model.tokenizer.detokenizer(previous), stops, prefix)


async def _bad_word_ids(
    request: GenerationRequest, model: Model, context: ServiceContext, caller: Caller
) -> BadWordIds | None:
    """Each bad word, without and with a leading space."""
    words = request.decoding.bad_words
    checks.check_bad_words(words)
    if not words:
        return None
    encode = partial(model.tokenizer.encode, special_tokens=False, max_tokens=MAX_BAD_WORD_TOKENS)
    rows = [
        row
        for spelled in (words, [f" {word.lstrip()}" for word in words])
        for row in await context.tokenize(spelled, encode, caller, "bad_words")
    ]
    distinct = {row for row in rows if row}
    return await context.build(16 * sum(map(len, distinct)), lambda: BadWordIds(distinct), caller)


async def _constraint(
    request: GenerationRequest, model: Model, context: ServiceContext, caller: Caller
) -> Constraint | None:
    grammar = checks.checked_grammar(request.decoding, request.stopping)
    if grammar is None:
        return None
    try:
        return await context.in_thread(
            lambda: model.grammars.compile(grammar), caller, 16 * grammar.num_bytes + MAX_SLICE_COST
        )
    except GrammarError as error:
        raise InvalidArgumentError(f"grammar.{grammar.kind}", str(error)) from error
