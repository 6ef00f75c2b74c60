"""Errors of grammars: what the caller gets of the library's messages."""

import json
from typing import Any

import pytest

from server.constraint import ConstraintError
from server.text.grammar import Grammar, GrammarCompiler, GrammarError, GrammarKind
from server.text.grammar_errors import UNSUPPORTED, describe
from tests.server.test_grammar import EOS, byte_level


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    tokenizer = byte_level()
    return GrammarCompiler(tokenizer, tokenizer.get_vocab_size(), (EOS,))


def error_of(compiler: GrammarCompiler, grammar: Grammar) -> str:
    with pytest.raises(GrammarError) as caught:
        compiler.compile(grammar)
    return str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("a b(", "unclosed group at character 4"),
        (" ( ", "unclosed group at character 2"),
        ("x" * 60_000 + "[", "unclosed character class at character 60001"),
        (
            "[z-a]",
            "invalid character class range, the start must be <= the end at character 2",
        ),
        ("a/b(", "invalid regular expression: unclosed group"),
        ("\\bfoo", "look-around, including \\b, is not supported"),
        ("[^\\x00-\\x{10ffff}]", "allows no text"),
    ],
)
def test_errors_of_regular_expressions(
    compiler: GrammarCompiler, pattern: str, message: str
) -> None:
    assert error_of(compiler, Grammar(GrammarKind.REGEX, pattern)) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("start: nowhere", "unknown name 'nowhere' at line 1, column 8"),
        ('begin: "a"', "has no rule named start"),
        ('start: "a" %%', "unexpected character, or unclosed text at line 1, column 13"),
        ('start: "a"\nstart: "b"', "duplicate rule 'start' at line 2, column 8"),
        ("start: /(/", "invalid regular expression: unclosed group at line 1, column 8"),
        ('start[temperature=x]: "a"', "expected a number at line 1, column 19"),
        ("start: %json {", "%json needs a valid JSON object"),
        ('start: %json {"type": "x"}', "unknown type 'x' at line 1, column 8"),
        ("%import foo.bar\nstart: bar", "unknown import 'foo.bar' at line 1, column 1"),
        ("start: <[x]>", f"{UNSUPPORTED} at line 1, column 8"),
        ("start: " + "(" * 3000, "is nested too deeply at line 1, column 37"),
        ("start: a\na: a", "allows no text"),
    ],
)
def test_errors_of_lark_grammars(compiler: GrammarCompiler, text: str, message: str) -> None:
    assert error_of(compiler, Grammar(GrammarKind.LARK, text)) == message


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "x" * 1000}, "unknown type '" + "x" * 80 + "…'"),
        ({"$ref": "#/x"}, "$ref: there is no '/x'"),
        (
            {"$schema": "foo"},
            "refers to 'foo'; only parts of the schema itself can be referred to",
        ),
        ({"pattern": "(", "type": "string"}, "invalid regular expression: unclosed group"),
        (
            {"type": "integer", "minimum": 5, "maximum": 1},
            "minimum (5) is greater than maximum (1)",
        ),
        ({"enum": []}, "no value matches the schema"),
        ({"if": {}, "not": {}}, "keys that are not supported: 'if, not'"),
        ({"type": "array", "minItems": -1}, "expected positive integer for minItems"),
        ({"properties": 3, "type": "object"}, "expected object for properties"),
        ({"x-guidance": 3}, UNSUPPORTED),
        (
            {"type": "object", "patternProperties": {"a": {}, "b": {}}},
            "patternProperties match the same names",
        ),
        ({"allOf": [{"anyOf": [{"enum": list(range(9))}] * 9}] * 9}, "is too complex"),
        ({"const": float("nan")}, "has a number that JSON does not have"),
    ],
)
def test_errors_of_json_schemas(
    compiler: GrammarCompiler, schema: dict[str, Any], message: str
) -> None:
    assert error_of(compiler, Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema))) == message


def test_an_object_with_too_many_optional_properties(compiler: GrammarCompiler) -> None:
    """The library finds out at the first property."""
    schema = {"type": "object", "properties": {f"k{number}": {} for number in range(1500)}}
    constraint = compiler.compile(Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema)))
    token = byte_level().token_to_id('{"')
    assert token is not None
    with pytest.raises(ConstraintError) as caught:
        constraint.advance(token)
    assert str(caught.value) == "is too complex"


def test_numbers_with_too_many_digits(compiler: GrammarCompiler) -> None:
    grammar = Grammar(GrammarKind.JSON_SCHEMA, '{"const": ' + "1" * 5000 + "}")
    assert error_of(compiler, grammar) == "is not JSON: a number is too large"


@pytest.mark.parametrize(
    ("message", "described"),
    [
        ("", UNSUPPORTED),
        ("panicked at /root/.cargo/registry/src/derivre-0.3.1/src/ast.rs:12:9:\nx", UNSUPPORTED),
        ("invalid type: integer `3`, expected struct JsonCompileOptions", UNSUPPORTED),
        ("at 2(5): something new in parser/src/lark", f"{UNSUPPORTED} at line 2, column 5"),
        (
            "regex parse error:\n    (\n    ^\nerror: `Ast::new`",
            "has an invalid regular expression",
        ),
        (
            "Parser Error: token \"�[2]\" doesn't satisfy the grammar; forced bytes: got 'Ã'",
            "needs text that no token of this model has",
        ),
        ("lexer error: too many expressions\n<state>\nParser: {}", "is too complex"),
    ],
)
def test_internals_are_not_told(message: str, described: str) -> None:
    assert describe(message) == described
