"""The flags of the commands that generate text: defined once, added to each of them."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, ParamSpec, TypeVar

import typer

from client import types

_MAX_NEW_TOKENS = 256

P = ParamSpec("P")
R = TypeVar("R")


def generation_options(
    version: Annotated[str, typer.Option(help="A version; the newest by default.")] = "",
    max_new_tokens: Annotated[
        int, typer.Option(help="End a text after this many tokens.")
    ] = _MAX_NEW_TOKENS,
    min_new_tokens: Annotated[int | None, typer.Option(help="End no text before this.")] = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on past the end-of-sequence token.")
    ] = False,
    stop: Annotated[
        list[str] | None,
        typer.Option(help="End a text just before this string. May be given several times."),
    ] = None,
    stop_token_id: Annotated[
        list[int] | None, typer.Option(help="End a text with this token. May be repeated.")
    ] = None,
    max_seconds: Annotated[
        float | None, typer.Option(help="End a text after this time, with what there is.")
    ] = None,
    stop_before_deadline: Annotated[
        bool,
        typer.Option(
            "--stop-before-deadline", help="End a text shortly before the call's deadline."
        ),
    ] = False,
    temperature: Annotated[
        float | None,
        typer.Option(help="Sample; 0, and without this flag, takes the likeliest token."),
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample from the k likeliest tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Sample from the tokens that make up this probability.")
    ] = None,
    min_p: Annotated[
        float | None,
        typer.Option(help="Sample from tokens with this share of the likeliest's probability."),
    ] = None,
    typical_p: Annotated[float | None, typer.Option(help="Locally typical sampling.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Make sampling repeatable.")] = None,
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Weaken tokens that were there; 1 is none.")
    ] = None,
    presence_penalty: Annotated[
        float | None, typer.Option(help="Subtract from the logits of generated tokens.")
    ] = None,
    frequency_penalty: Annotated[
        float | None, typer.Option(help="Subtract this for every time a token was generated.")
    ] = None,
    no_repeat_ngram_size: Annotated[
        int | None, typer.Option(help="Let no sequence of this many tokens appear twice.")
    ] = None,
    bad_word: Annotated[
        list[str] | None, typer.Option(help="Never write this. May be repeated.")
    ] = None,
    beam_size: Annotated[int | None, typer.Option(help="Search with this many beams.")] = None,
    length_penalty: Annotated[
        float | None, typer.Option(help="Divide a beam's score by its length to this power.")
    ] = None,
    early_stopping: Annotated[
        types.EarlyStopping | None, typer.Option(help="When a beam search is over.")
    ] = None,
    num_hypotheses: Annotated[
        int | None, typer.Option(help="Texts for each input: beams, samples or alternatives.")
    ] = None,
    alternatives: Annotated[
        bool, typer.Option("--alternatives", help="Begin with each of the likeliest tokens.")
    ] = False,
    target_prefix: Annotated[str, typer.Option(help="Begin the output with this.")] = "",
    json_schema: Annotated[str, typer.Option(help="Write JSON that follows this schema.")] = "",
    regex: Annotated[str, typer.Option(help="Write text that matches this.")] = "",
    lark: Annotated[str, typer.Option(help="Write text of this grammar (Lark's syntax).")] = "",
    choice: Annotated[
        list[str] | None, typer.Option(help="Write one of these. May be repeated.")
    ] = None,
    token_ids: Annotated[
        bool, typer.Option("--token-ids", help="Print the output's token ids too.")
    ] = False,
    logprobs: Annotated[
        bool, typer.Option("--logprobs", help="With --json: the tokens' log-probabilities too.")
    ] = False,
    alignments: Annotated[
        bool,
        typer.Option(
            "--alignments", help="With --json: which part of the source each part came from."
        ),
    ] = False,
    attention: Annotated[
        types.AttentionKind | None,
        typer.Option(help="With --json: what tokens attended to, as the mean of the chosen."),
    ] = None,
    attention_layer: Annotated[
        list[int] | None, typer.Option(help="From 0; all if none. May be repeated.")
    ] = None,
    attention_head: Annotated[
        list[int] | None, typer.Option(help="From 0; all if none. May be repeated.")
    ] = None,
    echo: Annotated[bool, typer.Option("--echo", help="Print the input first.")] = False,
    priority: Annotated[int, typer.Option(help="Higher is served earlier.")] = 0,
) -> types.GenerationOptions:
    """What the flags ask for. Raises ``typer.BadParameter`` for two grammars at once."""
    grammars: list[types.Grammar] = []
    grammars += [types.JsonSchema(json_schema)] if json_schema else []
    grammars += [types.Regex(regex)] if regex else []
    grammars += [types.Lark(lark)] if lark else []
    grammars += [types.Choices(tuple(choice))] if choice else []
    if len(grammars) > 1:
        raise typer.BadParameter("give one of --json-schema, --regex, --lark and --choice")
    return types.GenerationOptions(
        version=version,
        max_new_tokens=max_new_tokens,
        min_new_tokens=min_new_tokens,
        ignore_eos=ignore_eos,
        stop_strings=stop or (),
        stop_token_ids=stop_token_id or (),
        max_seconds=max_seconds,
        stop_before_deadline=stop_before_deadline,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        typical_p=typical_p,
        seed=seed,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        no_repeat_ngram_size=no_repeat_ngram_size,
        bad_words=bad_word or (),
        beam_size=beam_size,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
        num_hypotheses=num_hypotheses,
        alternatives=alternatives,
        target_prefix=target_prefix or (),
        grammar=grammars[0] if grammars else None,
        token_ids=token_ids,
        logprobs=logprobs,
        attention=None
        if not (attention or alignments)
        else types.AttentionOptions(
            kind=attention,
            layers=tuple(attention_layer or ()),
            heads=tuple(attention_head or ()),
            average=True,
            alignments=alignments,
        ),
        echo=echo,
        priority=priority,
    )


def takes_generation_options(command: Callable[..., R]) -> Callable[..., R]:
    """Gives ``command`` the flags of :func:`generation_options`.

    Its own parameter ``options`` receives their result; the command line does not see it.
    """
    shared = inspect.signature(generation_options, eval_str=True).parameters
    own = inspect.signature(command, eval_str=True)
    mine = {name: value for name, value in own.parameters.items() if name != "options"}

    @wraps(command)
    def run(**arguments: object) -> R:
        options = generation_options(**{name: arguments.pop(name) for name in shared})  # type: ignore[arg-type]
        return command(**arguments, options=options)

    every = [*mine.values(), *shared.values()]
    keyword = [value.replace(kind=inspect.Parameter.KEYWORD_ONLY) for value in every]
    run.__signature__ = own.replace(parameters=keyword)  # type: ignore[attr-defined]
    run.__annotations__ = {value.name: value.annotation for value in keyword}
    return run
