"""Training reads and writes the tokens that serving does, with those of languages."""

from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from export.checkpoint import Checkpoint
from model.bundle import SpecialTokens, Task
from model.examples import TranslationExample
from tests.architectures import BERT
from train.batches import IGNORED
from train.errors import RecipeError
from train.read_recipe import parse_recipe
from train.rows import TextRowEncoder
from train.vocabulary import Vocabulary, vocabulary_of

WORDS = ("<s>", "<pad>", "</s>", "<unk>", "en_XX", "it_IT", "a", "b", "c")
LANGUAGES = {"en_XX": 4, "it_IT": 5}


def tokenizer_of(template: str) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({x: i for i, x in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(list(WORDS[:6]))
    named = [(word, WORDS.index(word)) for word in template.split() if word != "$A"]
    tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=named)
    return tokenizer


def vocabulary(template: str, special: SpecialTokens, **languages: str) -> Vocabulary:
    tokenizer = tokenizer_of(template)
    values: dict[str, Any] = {
        "name": "x",
        "license": "x",
        "objective": "sequence_to_sequence",
        "start_from": "x",
        "data": {"source": "file:x"},
        "training": {"num_steps": 1},
        **languages,
    }
    start = Checkpoint(
        config=BERT,
        weights={},
        tokenizer_json=tokenizer.to_str(),
        architecture="x",
        tasks=(Task.TRANSLATE,),
        special_tokens=special,
        license="x",
        name="x",
        languages=LANGUAGES,
    )
    return vocabulary_of(tokenizer, special, parse_recipe(values, "x"), start)


def row(vocabulary: Vocabulary) -> tuple[list[int] | None, list[int], list[int]]:
    made = TextRowEncoder(vocabulary).sequence_to_sequence(
        TranslationExample(source="a b", target="c")
    )
    return made.sources, made.inputs, made.targets


@pytest.mark.parametrize(
    ("template", "special", "source", "inputs"),
    [
        # NLLB and mBART-50: the source's language is first, and the target's after the start.
        ("en_XX $A </s>", SpecialTokens(eos=(2,), decoder_start=2), [5, 6, 7, 2], [2, 4, 8]),
        # mBART: the source's language is last, and the target's is the start.
        ("$A </s> en_XX", SpecialTokens(eos=(2,), decoder_start=5), [6, 7, 2, 5], [4, 8]),
    ],
)
def test_languages_of_a_multilingual_model(
    template: str, special: SpecialTokens, source: list[int], inputs: list[int]
) -> None:
    found = vocabulary(template, special, source_language="it_IT", target_language="en_XX")
    ignored = [IGNORED] * (len(inputs) - 2)
    assert row(found) == (source, inputs, [*ignored, 8, 2])


def test_a_model_with_one_target_language_needs_no_name() -> None:
    special = SpecialTokens(eos=(2,), decoder_start=2, forced_first=5)
    assert row(vocabulary("$A </s>", special)) == ([6, 7, 2], [2, 5, 8], [IGNORED, 8, 2])


@pytest.mark.parametrize(
    ("languages", "expected"),
    [
        ({}, "target_language: start_from requires one of en_XX, it_IT"),
        ({"target_language": "xx"}, "target_language: xx is not a language of start_from: en_XX"),
    ],
)
def test_a_missing_language_is_named(languages: dict[str, str], expected: str) -> None:
    special = SpecialTokens(eos=(2,), decoder_start=2)
    with pytest.raises(RecipeError, match=expected):
        vocabulary("en_XX $A </s>", special, **languages)


def test_a_decoder_without_a_first_token_begins_with_the_text() -> None:
    tokenizer = tokenizer_of("$A")
    tokens = SpecialTokens(eos=(2,))
    assert Vocabulary(tokenizer, tokens).prompt("") == []
    assert Vocabulary(tokenizer, SpecialTokens(eos=(2,), bos=0)).prompt("") == [0]
    assert Vocabulary(tokenizer, tokens).special == set(range(6))
    assert Vocabulary(tokenizer, tokens).ordinary == [6, 7, 8]
