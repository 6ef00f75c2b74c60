"""Grammar constraints: allowed tokens, step by step, and rejected grammars."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from server.constraint import ConstraintError
from server.text.grammar import (
    Grammar,
    GrammarCompiler,
    GrammarConstraint,
    GrammarError,
    GrammarKind,
)
from server.text.token_bytes import longest_tokens

EOS = 0
WORDS = ("true", "false", '{"', '":', "red", "re", "green", "12", "é", "0.5", '",')


def byte_level() -> Tokenizer:
    """A byte-level BPE vocabulary: all bytes and a few longer tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<end>": EOS} | {letter: 1 + index for index, letter in enumerate(alphabet)}
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for word in WORDS:
        ((spelled, _),) = level.pre_tokenize_str(word)
        vocabulary.setdefault(spelled, len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = level
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    return tokenizer


def _pieces() -> list[str]:
    """SentencePiece tokens, with and without the leading space."""
    plain = [*map(chr, range(33, 127)), *WORDS]
    return list(dict.fromkeys([*plain, "▁", *(f"▁{word}" for word in plain)]))


def metaspace() -> Tokenizer:
    """A unigram vocabulary like T5 or Marian."""
    scored = [("<end>", 0.0), ("<unk>", -20.0), *((piece, -5.0) for piece in _pieces())]
    tokenizer = Tokenizer(models.Unigram(scored, unk_id=1))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["<end>"])
    return tokenizer


def byte_fallback() -> Tokenizer:
    """A BPE vocabulary with byte fallback, like Llama 2."""
    tokens = ["<end>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *_pieces()]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    model = models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens(["<end>"])
    return tokenizer


def characters() -> Tokenizer:
    """A vocabulary of characters, which the pre-tokenizer splits, and of some words."""
    tokens = ["<end>", "<unk>", *dict.fromkeys([*map(chr, range(32, 127)), *WORDS])]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["<end>", "<unk>"])
    return tokenizer


@pytest.fixture(scope="module", params=[byte_level, metaspace, byte_fallback, characters])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    built: Tokenizer = request.param()
    return built


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer, tokenizer.get_vocab_size(), (EOS,))


def id_of(tokenizer: Tokenizer, token: str) -> int:
    id_ = tokenizer.token_to_id(token)
    assert id_ is not None
    return id_


def allowed_tokens(constraint: GrammarConstraint, size: int) -> set[int]:
    logits = np.zeros(size, np.float32)
    constraint.mask(logits)
    return {int(id_) for id_ in np.flatnonzero(logits == 0)}


def generate_text(
    constraint: GrammarConstraint, tokenizer: Tokenizer, seed: int, limit: int = 400
) -> str:
    """Generates random allowed tokens until the grammar ends."""
    ids: list[int] = []
    rng = np.random.default_rng(seed)
    for step in range(limit):
        choices = allowed_tokens(constraint, tokenizer.get_vocab_size())
        if EOS in choices and (len(choices) == 1 or step > 40 or rng.random() < 0.3):
            text: str = tokenizer.decode(ids)
            return text
        if step > 40:  # prefer tokens that close strings and objects
            closing = [id_of(tokenizer, x) for x in '"}]' if id_of(tokenizer, x) in choices]
            choices = set(closing) or choices
        ids.append(int(rng.choice(sorted(choices - {EOS}))))
        constraint.advance(ids[-1])
    raise AssertionError("the grammar does not end")


A = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("schema", "text", "is_accepted"),
    [
        ({"type": "string", "maxLength": 2}, r'"\n\""', True),
        ({"type": "string", "maxLength": 2}, r'"\n\"a"', False),
        ({"type": "string", "minLength": 2}, r'"\n"', False),
        (A, r'{"a":"x"}', False),
        (A | {"additionalProperties": False}, r'{"a":1}', True),
        (A | {"additionalProperties": False}, r'{"\u0061":"x"}', False),
        (A, r'{"\u0061":"x"}', True),  # a limit of llguidance
    ],
)
def test_escapes_in_json(
    compiler: GrammarCompiler,
    tokenizer: Tokenizer,
    schema: dict[str, object],
    text: str,
    is_accepted: bool,
) -> None:
    constraint = compiler.compile(Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema)))
    ids = [*(id_of(tokenizer, character) for character in text), EOS]
    for id_ in ids:
        if id_ not in allowed_tokens(constraint, tokenizer.get_vocab_size()):
            assert not is_accepted
            return
        constraint.advance(id_)
    assert is_accepted


def test_follows_a_choice_list(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    values = ("red", "green (1+1)", "é|[x]", "r.")
    grammar = Grammar(GrammarKind.CHOICES, choices=values)
    seen = {generate_text(compiler.compile(grammar), tokenizer, seed) for seed in range(60)}
    assert seen == set(values)


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000))
def test_follows_a_json_schema(compiler: GrammarCompiler, tokenizer: Tokenizer, seed: int) -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "boolean"},
            "b": {"type": "array", "items": {"enum": ["red", "é"]}, "maxItems": 3},
            "c": {"type": "integer", "minimum": 3, "maximum": 40},
        },
        "required": ["a", "b", "c"],
        "additionalProperties": False,
    }
    grammar = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema))
    value = json.loads(generate_text(compiler.compile(grammar), tokenizer, seed))
    assert list(value) == ["a", "b", "c"]
    assert isinstance(value["a"], bool)
    assert set(value["b"]) <= {"red", "é"}
    assert 3 <= value["c"] <= 40


def test_follows_regexes_and_context_free_grammars(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    regex = Grammar(GrammarKind.REGEX, "[0-9]{2}-(red|green)")
    text = generate_text(compiler.compile(regex), tokenizer, 1)
    assert text[:2].isdigit()
    assert text[3:] in ("red", "green")
    lark = Grammar(GrammarKind.LARK, 'start: "(" start ")" | "12"')
    text = generate_text(compiler.compile(lark), tokenizer, 3)
    assert text.count("(") == text.count(")")
    assert text.strip("()") == "12"


def test_forked_constraints_are_independent(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    first = compiler.compile(Grammar(GrammarKind.CHOICES, choices=("red", "green")))
    second = first.fork()
    first.advance(id_of(tokenizer, "re"))
    assert allowed_tokens(first, tokenizer.get_vocab_size()) == {tokenizer.token_to_id("d")}
    assert tokenizer.token_to_id("green") in allowed_tokens(second, tokenizer.get_vocab_size())


def test_rejects_a_disallowed_token(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    constraint = compiler.compile(Grammar(GrammarKind.CHOICES, choices=("red",)))
    with pytest.raises(ConstraintError):
        constraint.advance(id_of(tokenizer, "green"))


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        (Grammar(GrammarKind.REGEX, "(((("), "unclosed group at character 4"),
        (Grammar(GrammarKind.LARK, "start: nowhere"), "nowhere"),
        (Grammar(GrammarKind.JSON_SCHEMA, "["), "not JSON"),
        (Grammar(GrammarKind.JSON_SCHEMA, "3"), "not a JSON schema"),
        (Grammar(GrammarKind.JSON_SCHEMA, '{"type": "nonsense"}'), "nonsense"),
        (Grammar(GrammarKind.JSON_SCHEMA, '{"$ref": "http://a.example/b"}'), "a.example"),
    ],
    ids=["regex", "lark", "json", "number", "type", "remote"],
)
def test_rejects_invalid_grammars(
    compiler: GrammarCompiler, grammar: Grammar, message: str
) -> None:
    with pytest.raises(GrammarError, match=message):
        compiler.compile(grammar)


def test_exploding_grammar_stops_at_the_library_limits(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    """Fails at compilation or within the first tokens: the library limits states, not time."""
    token = id_of(tokenizer, "a")
    with pytest.raises((GrammarError, ConstraintError), match="too complex"):  # noqa: PT012
        constraint = compiler.compile(Grammar(GrammarKind.REGEX, "a{1000000}"))
        for _ in range(200):
            assert token in allowed_tokens(constraint, tokenizer.get_vocab_size())
            constraint.advance(token)


def test_constraints_require_an_eos_token() -> None:
    with pytest.raises(GrammarError, match="no end-of-sequence token"):
        GrammarCompiler(metaspace(), 2, ()).compile(Grammar(GrammarKind.REGEX, "a"))


def test_first_word_may_include_the_leading_space() -> None:
    tokenizer = metaspace()
    size = tokenizer.get_vocab_size() + 3  # the model's vocabulary is padded
    constraint = GrammarCompiler(tokenizer, size, (EOS,)).compile(
        Grammar(GrammarKind.CHOICES, choices=("red green",))
    )
    first = {tokenizer.id_to_token(id_) for id_ in allowed_tokens(constraint, size)}
    assert first == {"▁red", "▁re", "▁r", "▁", "red", "re", "r"}
    constraint.advance(id_of(tokenizer, "▁red"))
    second = {tokenizer.id_to_token(id_) for id_ in allowed_tokens(constraint, size)}
    assert second == {"▁green"}, "later words use the tokenizer's spelling"


def test_requests_do_not_use_up_the_limits_of_each_other() -> None:
    tokenizer, rng = byte_level(), np.random.default_rng(0)
    compiler = GrammarCompiler(tokenizer, tokenizer.get_vocab_size(), (EOS,))
    letters = [id_of(tokenizer, letter) for letter in "ab"]
    for _ in range(120):  # each visits new states of an automaton with 2 ** 20 of them
        constraint = compiler.compile(Grammar(GrammarKind.REGEX, "[ab]*a[ab]{20}"))
        for token in rng.choice(letters, 600).tolist():
            constraint.advance(token)
        assert set(letters) <= allowed_tokens(constraint, tokenizer.get_vocab_size())


def test_text_that_no_token_spells_is_not_split() -> None:
    ids = {b"r": 3, b"re": 4, b"d": 5, b"ed": 6}
    assert longest_tokens(b"red", ids) == [4, 5]
    assert longest_tokens(b"", ids) == []
    assert longest_tokens(b"rex", ids) == []
