"""Grammars of all kinds: compiled or rejected within limits, then advanced a few tokens."""

import json
from collections.abc import Iterator

import numpy as np

from server.constraint import ConstraintError
from server.text.grammar import Grammar, GrammarCompiler, GrammarError, GrammarKind
from tests.fuzz.draw import Draw
from tests.fuzz.vocabularies import NAMES, size, tokenizer

SIZE = 256
NUM_STEPS = 6
MAX_MESSAGE = 300  # characters
KINDS = tuple(GrammarKind)
_COMPILERS: dict[str, GrammarCompiler] = {}

EXAMPLES: dict[GrammarKind, tuple[str, ...]] = {
    GrammarKind.JSON_SCHEMA: (
        json.dumps({"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}}),
        json.dumps({"enum": ["a", 1, None]}),
        json.dumps({"$defs": {"t": {"items": {"$ref": "#/$defs/t"}}}, "$ref": "#/$defs/t"}),
        json.dumps({"type": "string", "pattern": "^a+$", "maxLength": 3}),
        json.dumps({"anyOf": [{"type": "null"}, {"type": "number", "multipleOf": 0.5}]}),
        json.dumps({"type": "string", "format": "date-time"}),
    ),
    GrammarKind.REGEX: ("[0-9]{4}-[0-9]{2}", "(a|b)*c+", "[^x]{3,5}(?i)y?", "\\d+\\.\\w", "é|東"),
    GrammarKind.LARK: (
        'start: "a" b+\nb: /[0-9]+/ | "(" b ")"\n',
        'start: greeting ("," " " NAME)* "!"\ngreeting: "hello" | "hi"\nNAME: /[A-Z][a-z]+/\n',
        "start: /a/{2,3} T\nT: /x/ & ~/y/\n%ignore / /\n",
        'start: %json {"type": "integer"}\n',
    ),
    GrammarKind.CHOICES: ("yes\0no", "a\0ab\0a.b", "é\0(\0[x"),
}


def run(data: bytes) -> None:
    """Input: grammar kind, vocabulary, token selection seed, grammar."""
    draw = Draw(data)
    kind, seed = KINDS[draw.byte() % len(KINDS)], draw.byte()
    name = NAMES[seed % 3]  # the small vocabularies
    if kind == GrammarKind.CHOICES:
        choices = tuple(text for text in draw.rest().decode(errors="replace").split("\0") if text)
        if not choices:
            return
        grammar = Grammar(kind, choices=choices)
    else:
        grammar = Grammar(kind, draw.rest_as_text())
    try:
        constraint = _compiler(name).compile(grammar)
    except GrammarError as error:
        _check(str(error))
        return
    try:
        for step in range(NUM_STEPS):
            logits = np.zeros(size(name), np.float32)
            constraint.mask(logits)
            allowed = np.flatnonzero(np.isfinite(logits))
            assert len(allowed), "a grammar allows a token or raises"
            token = int(allowed[(seed + 7 * step) % len(allowed)])
            if token == 1:
                return
            constraint.advance(token)
    except ConstraintError as error:
        _check(str(error))


def _check(message: str) -> None:
    """A caller gets it: one short line, whatever the grammar."""
    assert message.isprintable(), message
    assert len(message) <= MAX_MESSAGE, message


def seeds() -> Iterator[bytes]:
    for number, kind in enumerate(KINDS):
        for seed, text in enumerate(EXAMPLES[kind]):
            yield bytes([number, seed]) + text.encode()


def _compiler(name: str) -> GrammarCompiler:
    if name not in _COMPILERS:
        eos = (0,) if name == "unigram" else (1,)
        _COMPILERS[name] = GrammarCompiler(tokenizer(name).library, size(name), eos)
    return _COMPILERS[name]
