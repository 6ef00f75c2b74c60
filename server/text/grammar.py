"""Grammar-constrained decoding. This is the only file that imports llguidance.

llguidance (https://github.com/guidance-ai/llguidance) computes which tokens may come next, for a
JSON schema, a regular expression or a context-free grammar. docs/decisions/0007-grammars.md
compares it with alternatives.
"""

import json
import logging
import re
import threading
from dataclasses import dataclass
from enum import StrEnum

import llguidance
import llguidance.numpy
import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from server.constraint import ConstraintError, Floats
from server.text.grammar_errors import describe
from server.text.large_stack import run_with_large_stack
from server.text.token_bytes import drops_first_space, token_bytes

log = logging.getLogger(__name__)

MAX_GRAMMAR_BYTES = 1 << 16
# A state takes up to 2 kB. The library's default of 250,000 would allow 500 MB for one request.
_LIMITS = llguidance.LLParserLimits(max_lexer_states=50_000)
_SPECIAL_IN_REGEX = re.compile(r"[\\.+*?()|\[\]{}^$#&~\-]")


class GrammarKind(StrEnum):
    """The language that a grammar is written in."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"
    CHOICES = "choices"


@dataclass(frozen=True, slots=True)
class Grammar:
    """A constraint on an output, which must match ``text`` or be one of ``choices``."""

    kind: GrammarKind
    text: str = ""
    choices: tuple[str, ...] = ()

    @property
    def num_bytes(self) -> int:
        """The size of ``text`` and ``choices`` in UTF-8."""
        return sum(len(text.encode()) for text in (self.text, *self.choices))


class GrammarError(Exception):
    """A grammar that cannot be used. The message is sent to the caller."""


class GrammarCompiler:
    """Compiles grammars for one tokenizer. Thread-safe.

    Compiled grammars are not kept: all forks of one extend the same automaton, whose size is
    limited, so that requests would use up the limit of each other.

    Args:
        tokenizer: the model's tokenizer; converted when the first grammar is compiled.
        vocabulary_size: length of the model's logits.
        eos: ids of the end-of-sequence tokens; without any, no grammar compiles.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary_size: int, eos: tuple[int, ...]) -> None:
        self._tokenizer = tokenizer
        self._vocabulary_size = vocabulary_size
        self._eos = list(eos)
        self._lock = threading.Lock()
        self._converted: llguidance.LLTokenizer | None = None
        self._drops_first_space = False

    def compile(self, grammar: Grammar) -> "GrammarConstraint":
        """Compiles a grammar to a constraint in its initial state. Blocks for up to a second.

        Raises:
            GrammarError: the grammar is malformed or too complex, or the tokenizer is unsupported.
        """
        # The library recurses once per rule: the largest grammars overflow 8 MiB of stack.
        return run_with_large_stack(lambda: self._compile(grammar))

    def _compile(self, grammar: Grammar) -> "GrammarConstraint":
        tokenizer = self._tokenizer_for_library()
        try:
            source = _source(grammar)
            if self._drops_first_space:
                source = _with_optional_space(source)
        except RecursionError as error:
            raise GrammarError("is nested too deeply") from error
        matcher = llguidance.LLMatcher(tokenizer, source, log_level=0, limits=_LIMITS)
        if matcher.is_error():
            is_pattern = grammar.kind in (GrammarKind.REGEX, GrammarKind.CHOICES)
            pattern = grammar.text if is_pattern else None
            raise GrammarError(describe(matcher.get_error(), pattern))
        constraint = GrammarConstraint(matcher, self._vocabulary_size)
        try:  # a grammar that is too complex exceeds the limits at the first token
            constraint.fork().mask(np.zeros(self._vocabulary_size, np.float32))
        except ConstraintError as error:
            raise GrammarError(str(error)) from error
        return constraint

    def _tokenizer_for_library(self) -> llguidance.LLTokenizer:
        with self._lock:
            if self._converted is None:
                if not self._eos:
                    raise GrammarError("this model has no end-of-sequence token")
                self._drops_first_space = drops_first_space(self._tokenizer)
                try:
                    self._converted = self._convert_tokenizer()
                except Exception as error:
                    # The library raises ValueError and RuntimeError, and wraps Rust's panics.
                    log.warning("the tokenizer allows no grammar", exc_info=error)
                    raise GrammarError("this model's tokenizer allows no grammar") from error
            return self._converted

    def _convert_tokenizer(self) -> llguidance.LLTokenizer:
        """Converts ``tokenizer.json`` if llguidance supports its decoder, else the token bytes."""
        given: str | llguidance.TokenizerWrapper = self._tokenizer.to_str()
        try:
            return llguidance.LLTokenizer(given, n_vocab=self._vocabulary_size, eos_token=self._eos)
        except ValueError:
            wrapped = _BytesTokenizer(self._tokenizer, self._vocabulary_size, self._eos[0])
            given = llguidance.TokenizerWrapper(wrapped)
        return llguidance.LLTokenizer(given, eos_token=self._eos)


class GrammarConstraint:
    """Implements :class:`server.constraint.Constraint`."""

    def __init__(self, matcher: llguidance.LLMatcher, vocabulary_size: int) -> None:
        self._matcher = matcher
        self._bits: npt.NDArray[np.int32] = llguidance.numpy.allocate_token_bitmask(
            1, vocabulary_size
        )

    def mask(self, logits: Floats) -> None:
        llguidance.numpy.fill_next_token_bitmask(self._matcher, self._bits, 0)
        if self._matcher.is_error():
            raise ConstraintError(describe(self._matcher.get_error()))
        allowed = np.unpackbits(self._bits.view(np.uint8), bitorder="little")[: len(logits)]
        logits[allowed == 0] = -np.inf

    def advance(self, token: int) -> None:
        if not self._matcher.consume_token(token):
            message = self._matcher.get_error()
            raise ConstraintError(describe(message) if message else "does not allow this token")

    def fork(self) -> "GrammarConstraint":
        return GrammarConstraint(self._matcher.deep_copy(), self._bits.shape[1] * 32)


class _BytesTokenizer:
    """A tokenizer with the attributes that ``llguidance.TokenizerWrapper`` reads."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocabulary_size: int, eos: int) -> None:
        vocabulary = token_bytes(tokenizer, vocabulary_size)
        self.eos_token_id = eos
        self.tokens = vocabulary.tokens
        self.special_token_ids = vocabulary.without_text
        self._encode = vocabulary.encode

    def __call__(self, text: bytes) -> list[int]:
        return self._encode(text)


def _with_optional_space(source: str) -> str:
    """Allows an optional leading space, which the tokenizer drops when it decodes."""
    if source.lstrip().startswith("{"):
        (inner,) = json.loads(source)["grammars"]
    else:
        inner = {"lark_grammar": source}
    outer = {"lark_grammar": 'start: SPACE? @inner\nSPACE: " "'}
    return json.dumps({"grammars": [outer, {**inner, "name": "inner"}]})


def _source(grammar: Grammar) -> str:
    """The grammar in llguidance's format."""
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            try:
                schema = json.loads(grammar.text)
            except json.JSONDecodeError as error:
                raise GrammarError(f"is not JSON: {error}") from error
            except ValueError as error:  # too many digits
                raise GrammarError("is not JSON: a number is too large") from error
            if not isinstance(schema, dict | bool):
                raise GrammarError("is not a JSON schema: it must be an object")
            return str(llguidance.LLMatcher.grammar_from_json_schema(grammar.text))
        case GrammarKind.REGEX:
            return str(llguidance.LLMatcher.grammar_from_regex(grammar.text))
        case GrammarKind.LARK:
            if grammar.text.lstrip().startswith("{"):  # llguidance's JSON format, not for clients
                raise GrammarError("does not begin with a rule")
            return str(llguidance.LLMatcher.grammar_from_lark(grammar.text))
        case GrammarKind.CHOICES:
            alternatives = "|".join(
                _SPECIAL_IN_REGEX.sub(r"\\\g<0>", choice) for choice in grammar.choices
            )
            return str(llguidance.LLMatcher.grammar_from_regex(f"({alternatives})"))
