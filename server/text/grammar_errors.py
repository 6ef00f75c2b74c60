"""Converts error messages of the grammar library to messages for the caller.

The library's messages may contain internals, such as parser states and type names, and may repeat
the whole grammar. Known helpful parts are kept; any other message becomes a generic one.
"""

import re

from server.printable import quoted

UNSUPPORTED = "is not a grammar that this server supports"
TOO_COMPLEX = "is too complex"

# Line and column of a Lark grammar: ``at 2(8): …``, or the same without ``at``.
_PLACE = re.compile(r"(?:at )?(\d{1,9})\((\d{1,9})\): ")
_SCHEMA = "failed to compile JSON schema: "
_REGEX, _INDENT, _REASON = "regex parse error:\n", "    ", "\nerror: "
# Patterns of messages, and their replacements. The group ``text`` is from the caller and is quoted.
_KNOWN = tuple(
    (re.compile(pattern, re.DOTALL), sentence)
    for pattern, sentence in (
        # Regular expressions.
        (r".*lookarounds not supported", "look-around, including \\b, is not supported"),
        # Lark grammars.
        (r"no start rule found", "has no rule named start"),
        (r"lexer error$", "unexpected character, or unclosed text"),
        (r'unknown name: "(?P<text>[^"]*)', "unknown name {text}"),
        (r"unknown grammar @(?P<text>\S*)", "unknown grammar {text}"),
        (r'unknown special token: "(?P<text>[^"]*)', "unknown special token {text}"),
        (r"Unknown common regex: (?P<text>[^;]*)", "unknown import {text}"),
        (r'duplicate rule: "(?P<text>[^"]*)', "duplicate rule {text}"),
        (r"Expected (?:token )?a (?P<kind>\w{1,20}), found", "expected a {kind}"),
        (r"range end must be >= start", "a range ends before it begins"),
        (r"Token range end too large", "a range has tokens beyond the vocabulary"),
        (r'failed to parse "?%(?P<name>json|regex)', "%{name} needs a valid JSON object"),
        (r".*too deeply nested", "is nested too deeply"),
        (r".*number too large", "a number is too large"),
        # JSON schemas.
        (r"Invalid type: (?P<text>.*)", "unknown type {text}"),
        (r"Unknown format: (?P<text>.*)", "unknown format {text}"),
        (r"Pointer '(?P<text>.*)' does not exist", "$ref: there is no {text}"),
        (
            r"Resource '(?:json-schema:///)?(?P<text>.*)' is not present in a registry",
            "refers to {text}; only parts of the schema itself can be referred to",
        ),
        (
            r"Unsatisfiable schema: (?P<low>\w{1,20} \(\S{1,30}\)) is greater than "
            r"(?P<high>\w{1,20} \(\S{1,30}\))",
            "{low} is greater than {high}",
        ),
        (r"Unsatisfiable schema", "no value matches the schema"),
        (r"Unimplemented keys: \[(?P<text>.*)\]", "keys that are not supported: {text}"),
        (
            r"Expected (?P<kind>[a-z ]{1,30}) for '(?P<name>\w{1,30})', got",
            "expected {kind} for {name}",
        ),
        (r"schema must be an object or boolean", "expected object, true or false for each schema"),
        (r"(?P<name>\w{1,30}) must be an (?P<kind>object|array)", "expected {kind} for {name}"),
        (r"invalid multiple of", "multipleOf must be greater than 0"),
        (r"oneOf constraints are not supported", "oneOf with such options is not supported"),
        (r"patternProperty regexes .* are not disjoint", "patternProperties match the same names"),
        (r"(?:expected value|number out of range) at", "has a number that JSON does not have"),
        (r".*(?:hex escape|surrogate)", "has an invalid escape"),
        (r"recursion limit exceeded", "is nested too deeply"),
        # All grammars.
        (r"(?i).*too (?:many|complex|big|large)", TOO_COMPLEX),
        (r"Parser Error: Current row has \d+ items; max", TOO_COMPLEX),
        (r"NoExtension", "allows no text"),
        (r"Parser Error: token .* doesn't satisfy", "needs text that no token of this model has"),
    )
)


def describe(message: str, pattern: str | None = None) -> str:
    """Describes what is wrong with a grammar, without the library's internals.

    Args:
        message: the library's message.
        pattern: the regular expression that the grammar consists of; ``None`` for other grammars.

    Returns:
        A predicate whose subject is the grammar, or a phrase that says what was found or expected;
        with the line and column if they are known.
    """
    message = message.strip()
    place = _PLACE.match(message)
    if place is not None:
        message = message[place.end() :]
    message = message.removeprefix(_SCHEMA)
    what = _of_regex(message, pattern) if _REGEX in message else _known(message)
    if place is None or pattern is not None:  # a pattern's place is in a generated Lark grammar
        return what
    return f"{what} at line {place[1]}, column {place[2]}"


def _of_regex(message: str, pattern: str | None) -> str:
    """Parses ``… regex parse error:``, the expression, carets at the place, ``error: REASON``."""
    _, _, found = message.partition(_REGEX)
    shown, _, reason = found.partition(_REASON)
    reason = reason.partition("\n")[0]
    if not re.fullmatch(r"[A-Za-z0-9 ,<=.\-]{1,200}", reason):
        return "has an invalid regular expression"
    lines = shown.split("\n")
    if pattern and len(lines) == 2 and lines[0] == _INDENT + pattern and "^" in lines[1]:
        return f"{reason} at character {lines[1].index('^') - len(_INDENT) + 1}"
    return f"invalid regular expression: {reason}"


def _known(message: str) -> str:
    message = message.partition("\n")[0]
    for pattern, sentence in _KNOWN:
        match = pattern.match(message)
        if match is not None:
            groups = match.groupdict()
            if "text" in groups:
                groups["text"] = quoted(groups["text"].replace('"', ""))
            return sentence.format(**groups)
    return UNSUPPORTED
