"""The Translate call: maps source texts to target texts with an encoder-decoder."""

import time
from dataclasses import replace
from functools import partial

from model.bundle import Task
from server.engine.requests.job import Delivery
from server.service import validation
from server.service.attention import check_joined_size
from server.service.caller import Caller
from server.service.context import ServiceContext
from server.service.generation_request import TranslateRequest
from server.service.languages import target_start, with_source_language
from server.service.prepare import job_template, prepared_request, target_jobs
from server.service.prepared_request import PreparedRequest
from server.service.sentences import plan_sentences, should_split
from server.service.target_prefixes import after_prefixes, target_prefix_ids


async def prepare_translate(
    request: TranslateRequest, context: ServiceContext, caller: Caller, delivery: Delivery
) -> PreparedRequest:
    """Validates a request, splits its texts into sentences if needed, and tokenizes them.

    Raises:
        ServeError: an option or input is invalid, the model is unknown, or its queue is full.
    """
    started = time.monotonic()
    template = await job_template(
        request, Task.TRANSLATE, len(request.inputs), context, caller, started, delivery
    )
    model = template.model
    validation.check_texts(request.inputs, context.config.max_input_bytes)
    plan = None
    if should_split(request, model):
        plan = await plan_sentences(request, model, context, caller)
    if plan is not None:
        context.engine.check(
            model.key, template.base.num_sequences * len(plan.inputs), caller.client
        )
        request = replace(request, inputs=plan.inputs)
    encode = partial(model.tokenizer.encode, max_tokens=model.max_source_length)
    sources = await context.tokenize(request.inputs, encode, caller)
    validation.check_lengths("inputs", sources, model.max_source_length)
    prefixes = await target_prefix_ids(request, model, len(sources), context, caller)
    start = target_start(model, request.target_language)
    sources = [with_source_language(model, request.source_language, row) for row in sources]
    jobs = target_jobs(template, request, sources, start, prefixes)
    jobs = await after_prefixes(jobs, prefixes, request, context, caller)
    prepared = prepared_request(request, model, caller, jobs, prefixes, started)
    if plan is None:
        return prepared
    if prepared.attention is not None:
        check_joined_size(prepared.attention, [place.text for place in plan.places], jobs)
    return replace(prepared, sentences=plan)
