"""Collects the whole outputs of Generate and Translate, for callers that do not stream."""

import contextlib
import itertools
from collections.abc import Sequence

from server.bounds import MAX_REPLY_VALUES
from server.engine.requests.job import GenerationJob
from server.errors import InvalidArgumentError
from server.service.context import ServiceContext
from server.service.generation_request import (
    GeneratedOutput,
    GenerationResult,
    Hypothesis,
    TextChunk,
)
from server.service.prepared_request import PreparedRequest
from server.service.text_stream import stream
from server.service.usage import Timing, Usage


async def collect(prepared: PreparedRequest, context: ServiceContext) -> GenerationResult:
    """Runs the jobs of a request; returns all outputs in the order of its inputs.

    Raises:
        ServeError: the first failure of any job.
    """
    check_reply_size(prepared.jobs)
    outputs: list[dict[int, list[TextChunk]]] = [{} for _ in range(prepared.num_inputs)]
    async with contextlib.aclosing(stream(prepared, context)) as chunks:
        async for chunk in chunks:
            outputs[chunk.index].setdefault(chunk.hypothesis, []).append(chunk)
    has_several = prepared.jobs[0].num_outputs > 1
    results = [_output(hypotheses, has_several=has_several) for hypotheses in outputs]
    completions = [
        hypothesis.finish.completion for output in results for hypothesis in output.hypotheses
    ]
    return GenerationResult(
        model=prepared.model.manifest.name,
        outputs=tuple(results),
        usage=Usage.total(output.usage for output in results),
        timing=Timing.of(completions, prepared.tokenize_seconds, prepared.started),
    )


def check_reply_size(jobs: Sequence[GenerationJob]) -> None:
    """Raises ``InvalidArgumentError`` if the reply to a request could be too large."""
    num_values = 0
    for job in jobs:
        options = job.logprob_options
        if options.prompt_logprobs is not None:
            num_values += len(job.prompt) * (1 + options.prompt_logprobs)
        if options.top_logprobs is not None:
            num_tokens = job.num_outputs * job.max_new_tokens
            num_values += num_tokens * (1 + options.top_logprobs)
    if num_values > MAX_REPLY_VALUES:
        raise InvalidArgumentError(
            "top_logprobs",
            f"could need {num_values} log-probabilities in the reply, at most {MAX_REPLY_VALUES} "
            "are accepted: ask for fewer or limit max_new_tokens",
        )


def _output(hypotheses: dict[int, list[TextChunk]], *, has_several: bool) -> GeneratedOutput:
    texts = tuple(_hypothesis(hypotheses[number]) for number in sorted(hypotheses))
    return GeneratedOutput(texts, Usage.total(text.finish.usage for text in texts), has_several)


def _hypothesis(chunks: Sequence[TextChunk]) -> Hypothesis:
    finish = chunks[-1].finish
    assert finish is not None, "a stream ends with a finish, or raises"
    if len(chunks) == 1:
        (chunk,) = chunks
        return Hypothesis(
            *(chunk.text, chunk.token_ids, chunk.logprobs, finish),
            *(chunk.tool_calls, chunk.reasoning, chunk.input_ids),
        )
    return Hypothesis(
        "".join(chunk.text for chunk in chunks),
        tuple(itertools.chain.from_iterable(chunk.token_ids for chunk in chunks)),
        tuple(itertools.chain.from_iterable(chunk.logprobs for chunk in chunks)),
        finish,
        tuple(itertools.chain.from_iterable(chunk.tool_calls for chunk in chunks)),
        "".join(chunk.reasoning for chunk in chunks),
        chunks[0].input_ids,
    )
