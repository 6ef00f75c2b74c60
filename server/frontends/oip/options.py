"""Maps request parameters to fields of the service's requests, by name.

A field is looked up in the request and in its groups of options, so a new option of the service
needs no code here.
"""

import json
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar

import msgspec

from server.errors import InvalidArgumentError
from server.printable import quoted
from server.service.generation_options import Grammar, GrammarKind
from server.service.score import ScoreRequest

T = TypeVar("T")
Parameter = bool | int | float | str
"""The value of a parameter; ``sampling_parameters`` may also hold lists and objects."""

MAX_PARAMETERS = 64
MAX_ITEMS = 1 << 12  # per list or object in sampling_parameters
MAX_JSON_BYTES = 1 << 18
# Names that clients of Triton's language model backends and of vLLM use.
ALIASES = {
    "max_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "n": "num_hypotheses",
    "stop": "stop_strings",
    "stop_words": "stop_strings",
    "beam_width": "beam_size",
    "random_seed": "seed",
}
# Triton's TensorRT-LLM clients send an empty text for none of these.
_EMPTY_IS_NONE = ("stop_strings", "bad_words")
# Fields that are no parameters: the codec or the service sets them, or no tensor returns their
# results.
_INTERNAL = frozenset(
    {
        *("model", "version", "inputs", "pairs", "images", "audio", "questions", "query"),
        "candidate_labels",
        *("documents", "messages", "chat", "token_inputs", "priority", "bad_word_ids", "attention"),
        *("token_embeddings", "top_n", "return_documents", "token_ids", "logprobs"),
        *("top_logprobs", "prompt_logprobs", "word_timestamps", "vectors", "weights"),
    }
)
_UNUSED = {(ScoreRequest, "response")}
_GRAMMARS = tuple(kind.value for kind in GrammarKind)


def known_options(kind: type[Any]) -> frozenset[str]:
    """The names of the parameters of requests of type ``kind``, without aliases."""
    return frozenset(_known(typing.cast(typing.Hashable, kind)))


def sent_names(kind: type[Any], options: Iterable[str]) -> dict[str, str]:
    """Maps fields of ``kind`` to the names in ``options`` that set them, where they differ."""
    fields = {**ALIASES, **dict.fromkeys(_GRAMMARS, "grammar")}
    for name in known_options(kind).difference(_GRAMMARS):
        fields.pop(name, None)
    return {fields[name]: name for name in options if name in fields}


def build_request(kind: type[T], given: Mapping[str, Any], options: Mapping[str, Any]) -> T:
    """Builds a request of type ``kind``.

    Args:
        kind: the request's type, a frozen dataclass.
        given: values of fields that the codec sets, in the request or its groups.
        options: parameters by name.

    Raises:
        InvalidArgumentError: a parameter is unknown, given twice or has the wrong type; the error
            names it.
    """
    if not options:
        return _filled(kind, given)
    known = _known(typing.cast(typing.Hashable, kind))
    values = dict(given)
    grammars = []
    for name, value in options.items():
        target = name if name in known else ALIASES.get(name, name)
        if target not in known:
            raise InvalidArgumentError(
                f"parameters.{name}", f"is not known; known: {', '.join(sorted(known))}"
            )
        if value == "" and target in _EMPTY_IS_NONE:
            continue
        convert = known[target]
        field = "grammar" if target in _GRAMMARS else target
        if field == "grammar":
            grammars.append(name)
        if field in values and (target == name or field == "grammar"):
            raise InvalidArgumentError(f"parameters.{name}", "is given twice")
        values[field] = convert(value, f"parameters.{name}")
    return _filled(kind, values)


def sampling_parameters(text: str) -> dict[str, Any]:
    """Parses the JSON object of options in the tensor ``sampling_parameters``.

    Raises:
        InvalidArgumentError: the text is no JSON object, or is too large.
    """
    name = "sampling_parameters"
    if len(text) > MAX_JSON_BYTES:
        raise InvalidArgumentError(name, f"has more than {MAX_JSON_BYTES} characters")
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise InvalidArgumentError(name, f"is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise InvalidArgumentError(name, "is not a JSON object")
    if len(found) > MAX_PARAMETERS:
        raise InvalidArgumentError(name, f"has {len(found)} entries, at most {MAX_PARAMETERS}")
    return {key: value for key, value in found.items() if value is not None}


def boolean(value: Any, field: str) -> bool:
    """Returns ``value``. Raises ``InvalidArgumentError`` if it is not true or false."""
    if not isinstance(value, bool):
        raise InvalidArgumentError(field, f"{_shown(value)} is not true or false")
    return value


def integer(value: Any, field: str) -> int:
    """Converts an integer or its text. Raises ``InvalidArgumentError`` for other values."""
    if isinstance(value, str) and len(value) <= 20:
        try:
            return int(value)
        except ValueError:
            pass
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidArgumentError(field, f"{_shown(value)} is not an integer")
    return value


def number(value: Any, field: str) -> float:
    """Converts a number or its text. Raises ``InvalidArgumentError`` for other values."""
    if isinstance(value, str) and len(value) <= 32:
        try:
            return float(value)
        except ValueError:
            pass
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InvalidArgumentError(field, f"{_shown(value)} is not a number")
    try:
        return float(value)
    except OverflowError as error:
        raise InvalidArgumentError(field, f"{_shown(value)} is too large") from error


def text(value: Any, field: str) -> str:
    """Returns ``value``. Raises ``InvalidArgumentError`` if it is not a text."""
    if not isinstance(value, str):
        raise InvalidArgumentError(field, f"{_shown(value)} is not a text")
    return value


Converter = Callable[[Any, str], Any]
_SCALARS: dict[Any, Converter] = {bool: boolean, int: integer, float: number, str: text}


@cache
def _known(kind: Any) -> dict[str, Converter]:
    """A converter for each option of ``kind`` and its groups."""
    known: dict[str, Converter] = {}
    hints = typing.get_type_hints(kind)
    for field in fields(kind):
        hint = _without_none(hints[field.name])
        if field.name in _INTERNAL or (kind, field.name) in _UNUSED:
            continue
        if hint is Grammar:
            known.update({name: _grammar_converter(name) for name in _GRAMMARS})
        elif is_dataclass(hint):
            known.update(_known(typing.cast(typing.Hashable, hint)))
        else:
            known[field.name] = _converter(hint)
    return known


def _filled(kind: type[T], values: Mapping[str, Any]) -> T:
    given = {}
    for name, group in _groups(typing.cast(typing.Hashable, kind)):
        if name in values:
            given[name] = values[name]
        elif group is not None:
            given[name] = _filled(group, values)
    return kind(**given)


@cache
def _groups(kind: Any) -> tuple[tuple[str, Any], ...]:
    """The fields of ``kind``, each with its type if it is a group of options, else ``None``."""
    hints = typing.get_type_hints(kind)
    return tuple(
        (
            field.name,
            hint if isinstance(hint := hints[field.name], type) and is_dataclass(hint) else None,
        )
        for field in fields(kind)
    )


def _without_none(hint: Any) -> Any:
    if isinstance(hint, types.UnionType):
        (hint,) = [part for part in typing.get_args(hint) if part is not type(None)]
    return hint


def _converter(hint: Any) -> Converter:
    if hint in _SCALARS:
        return _SCALARS[hint]
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _enum_converter(hint)
    item = typing.get_args(hint)[0]
    if typing.get_origin(item) is tuple:
        return _biases
    return _list_converter(_SCALARS[item])


def _enum_converter(kind: type[Enum]) -> Converter:
    members = {str(member.value): member for member in kind}

    def convert(value: Any, field: str) -> Enum:
        if not isinstance(value, str) or value not in members:
            raise InvalidArgumentError(field, f"{_shown(value)} is not one of {', '.join(members)}")
        return members[value]

    return convert


def _list_converter(item: Converter) -> Converter:
    def convert(value: Any, field: str) -> tuple[Any, ...]:
        values = value if isinstance(value, list) else [value]
        if len(values) > MAX_ITEMS:
            raise InvalidArgumentError(field, f"has {len(values)} items, at most {MAX_ITEMS}")
        return tuple(item(one, f"{field}[{index}]") for index, one in enumerate(values))

    return convert


def _biases(value: Any, field: str) -> tuple[tuple[int, float], ...]:
    """Converts a JSON object of numbers by token id."""
    if isinstance(value, str):
        value = sampling_parameters(value)
    if not isinstance(value, dict) or len(value) > MAX_ITEMS:
        raise InvalidArgumentError(field, "is not an object with numbers by token id")
    return tuple(
        sorted(
            (integer(id_, field), number(bias, f"{field}[{id_}]")) for id_, bias in value.items()
        )
    )


def _grammar_converter(name: str) -> Converter:
    kind = GrammarKind(name)

    def convert(value: Any, field: str) -> Grammar:
        if kind == GrammarKind.CHOICES:
            return Grammar(kind, choices=_list_converter(text)(value, field))
        if kind == GrammarKind.JSON_SCHEMA and isinstance(value, dict):
            return Grammar(kind, json.dumps(value))
        return Grammar(kind, text(value, field))

    return convert


def _shown(value: Any) -> str:
    return quoted(value) if isinstance(value, str) else quoted(repr(value)[:200]).strip("'\"")
