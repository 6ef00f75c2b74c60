"""Derives a command's flags from the ``TypedDict`` of its options.

An option with a ``Flag`` becomes one flag; its type says what the flag takes:

- ``bool``: a switch without a value.
- a sequence: a flag that may be given several times.
- any other, also one text or a sequence: one value.

Options that need several flags have a function in ``_COMPOSITE``: its parameters are the flags,
its result is the option.
"""

import inspect
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import wraps
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import typer

from client.options import (
    AttentionKind,
    AttentionOptions,
    Choices,
    Flag,
    Grammar,
    JsonSchema,
    Lark,
    Regex,
)

R = TypeVar("R")


def takes_options(
    *, without: Collection[str] = ()
) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Gives a command the flags of its parameter ``options``, which must be keyword-only.

    The annotation of ``options`` is the ``TypedDict`` whose flags are added. The command receives
    the options that were given, and those whose flag has a default.

    Args:
        without: options that get no flag on this command.
    """

    def decorate(command: Callable[..., R]) -> Callable[..., R]:
        own = inspect.signature(command, eval_str=True)
        schema = own.parameters["options"].annotation
        options = {
            name: _parameters(name, hint)
            for name, hint in get_type_hints(schema, include_extras=True).items()
            if name not in without
        }

        @wraps(command)
        def run(**arguments: Any) -> R:
            given = {}
            for name, parameters in options.items():
                flags = {each.name: arguments.pop(each.name) for each in parameters}
                value = _value(name, flags) if flags else None
                is_empty = value == "" == parameters[0].default
                if value is not None and value != [] and not is_empty:
                    given[name] = value
            return command(**arguments, options=given)

        parameters = [value for name, value in own.parameters.items() if name != "options"]
        parameters += [each for group in options.values() for each in group]
        keyword = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
        run.__signature__ = own.replace(parameters=keyword)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in keyword}
        return run

    return decorate


def _parameters(name: str, hint: Any) -> list[inspect.Parameter]:
    """The parameters of an option for typer: none if the option has no flag."""
    if name in _COMPOSITE:
        return list(inspect.signature(_COMPOSITE[name], eval_str=True).parameters.values())
    if get_origin(hint) is not Annotated:
        return []
    kind, flag = get_args(hint)
    return [_parameter(name, kind, flag)]


def _parameter(name: str, kind: Any, flag: Flag) -> inspect.Parameter:
    members = list(_members(kind))
    spelled = f"--{flag.name or name.replace('_', '-')}"
    help_, default = flag.help, flag.default
    sequences = [each for each in members if get_origin(each) is Sequence]
    if bool in members and not flag.negatable:
        annotation: Any = bool
        default = False
    elif sequences and str not in members:
        (item,) = get_args(sequences[0])
        annotation = list[item] | None  # type: ignore[valid-type]
        help_ = f"{help_.removesuffix('.')}; repeatable."
    else:
        annotation = members[0]
        if bool in members:
            spelled = f"{spelled}/--no-{spelled.removeprefix('--')}"
        if annotation is str and type(None) not in get_args(kind):
            default = default or ""  # the option is never None: no text leaves it out
        annotation = annotation if default is not None else annotation | None
    option = typer.Option(spelled, help=help_, min=flag.min)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[annotation, option],
    )


def _members(kind: Any) -> Iterator[Any]:
    """The types of a union, but ``None``."""
    union = get_origin(kind) in (types.UnionType, Union)
    yield from (each for each in (get_args(kind) if union else (kind,)) if each is not type(None))


def _value(name: str, arguments: Mapping[str, Any]) -> Any:
    if name in _COMPOSITE:
        return _COMPOSITE[name](**arguments)
    (value,) = arguments.values()
    return value


def _grammar(
    json_schema: Annotated[
        str, typer.Option(help="Generate JSON that conforms to this JSON schema.")
    ] = "",
    regex: Annotated[
        str, typer.Option(help="Generate text that matches this regular expression.")
    ] = "",
    lark: Annotated[
        str, typer.Option(help="Generate text of this context-free grammar in Lark's syntax.")
    ] = "",
    choice: Annotated[
        list[str] | None, typer.Option(help="Generate one of these texts; repeatable.")
    ] = None,
) -> Grammar | None:
    """Raises ``typer.BadParameter`` if more than one grammar is given."""
    grammars: list[Grammar] = []
    grammars += [JsonSchema(json_schema)] if json_schema else []
    grammars += [Regex(regex)] if regex else []
    grammars += [Lark(lark)] if lark else []
    grammars += [Choices(tuple(choice))] if choice else []
    if len(grammars) > 1:
        raise typer.BadParameter("give one of --json-schema, --regex, --lark and --choice")
    return grammars[0] if grammars else None


def _attention(
    alignments: Annotated[
        bool,
        typer.Option(
            "--alignments", help="With --json: which part of the source each part came from."
        ),
    ] = False,
    attention: Annotated[
        AttentionKind | None,
        typer.Option(help="With --json: attention weights, the mean over layers and heads."),
    ] = None,
    attention_layer: Annotated[
        list[int] | None, typer.Option(help="Layer, from 0; all by default; repeatable.")
    ] = None,
    attention_head: Annotated[
        list[int] | None, typer.Option(help="Head, from 0; all by default; repeatable.")
    ] = None,
) -> AttentionOptions | None:
    if not (attention or alignments):
        return None
    return AttentionOptions(
        kind=attention,
        layers=tuple(attention_layer or ()),
        heads=tuple(attention_head or ()),
        average=True,
        alignments=alignments,
    )


_COMPOSITE: dict[str, Callable[..., Any]] = {"grammar": _grammar, "attention": _attention}
