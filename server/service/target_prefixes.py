"""The texts with which outputs are forced to begin, as tokens that grammars have consumed."""

from collections.abc import Sequence
from dataclasses import replace

from server.constraint import Constraint, ConstraintError
from server.engine.requests.job import GenerationJob
from server.errors import InvalidArgumentError
from server.models.registry import Model
from server.service.caller import Caller
from server.service.context import ServiceContext
from server.service.generation_options import target_prefixes
from server.service.generation_request import GenerationRequest
from server.service.threads import slices_of

_ADVANCE_COST = 16  # of a grammar by one token


async def target_prefix_ids(
    request: GenerationRequest,
    model: Model,
    num_inputs: int,
    context: ServiceContext,
    caller: Caller,
) -> list[tuple[int, ...]]:
    """Token ids of each input's target prefix."""
    texts = target_prefixes(request.decoding, num_inputs)
    if not any(texts):
        return [()] * num_inputs
    given = request.decoding.target_prefix
    rows = await context.tokenize(
        given,
        lambda some: model.tokenizer.encode(some, special_tokens=False),
        caller,
        "target_prefix",
    )
    return rows if len(rows) == num_inputs else rows * num_inputs


async def after_prefixes(
    jobs: Sequence[GenerationJob],
    prefixes: Sequence[tuple[int, ...]],
    request: GenerationRequest,
    context: ServiceContext,
    caller: Caller,
) -> list[GenerationJob]:
    """The jobs of a request, whose grammar has consumed their target prefixes.

    Raises:
        InvalidArgumentError: the grammar does not accept a prefix as the start of a text.
        ServeError: see :meth:`ServiceContext.run_slices`.
    """
    grammar = jobs[0].constraint
    if grammar is None or not any(prefixes):
        return list(jobs)
    given = prefixes if len(request.decoding.target_prefix) > 1 else prefixes[:1]

    def consume(start: int, stop: int) -> list[Constraint]:
        return [_after(grammar, given[index], index) for index in range(start, stop)]

    costs = [_ADVANCE_COST * len(prefix) for prefix in given]
    parts = await context.run_slices(slices_of(costs, consume), caller)
    grammars = [grammar for part in parts for grammar in part]
    if len(given) < len(jobs):
        grammars *= len(jobs)
    return [replace(job, constraint=grammar) for job, grammar in zip(jobs, grammars, strict=True)]


def _after(grammar: Constraint, prefix: tuple[int, ...], index: int) -> Constraint:
    grammar = grammar.fork()
    try:
        for token in prefix:
            grammar.advance(token)
    except ConstraintError as error:
        reason = "the grammar does not accept it as the start of a text"
        raise InvalidArgumentError(f"target_prefix[{index}]", reason) from error
    return grammar
