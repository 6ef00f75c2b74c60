"""Synthetic tasks that a tiny model learns in seconds, one per objective."""

import random
from collections.abc import Callable
from datetime import date, timedelta

from model.examples import (
    AnswerExample,
    ClassificationExample,
    Example,
    LabelledSpan,
    MaskedExample,
    RankingExample,
    TaggingExample,
    TextExample,
    TranslationExample,
)
from train.data.shapes import captions, questions, shapes

LETTERS = "abcdefghij"
CLOSING = {"(": ")", "[": "]", "{": "}", "<": ">"}
FIRST_DAY, NUM_DAYS = date(1970, 1, 1), 36_525
DATE_FORMS: tuple[Callable[[date], str], ...] = (
    lambda d: f"{d.day} {d:%B %Y}",
    lambda d: f"{d:%B} {d.day}, {d.year}",
    lambda d: f"{d:%d/%m/%Y}",
    lambda d: f"{d.day}.{d.month}.{d.year}",
)


def _letters(rng: random.Random, shortest: int, longest: int) -> str:
    return "".join(rng.choice(LETTERS) for _ in range(rng.randint(shortest, longest)))


def reverse(rng: random.Random) -> Example:
    """Letters, and the same letters backwards."""
    text = _letters(rng, 3, 8)
    return TranslationExample(source=text, target=text[::-1])


def dates(rng: random.Random) -> Example:
    """A written date, and its ISO form."""
    day = FIRST_DAY + timedelta(days=rng.randrange(NUM_DAYS))
    return TranslationExample(source=rng.choice(DATE_FORMS)(day), target=day.isoformat())


def brackets(rng: random.Random) -> Example:
    """Opening brackets, and the brackets that close them."""
    opened = [rng.choice("([{<") for _ in range(rng.randint(3, 7))]
    closed = "".join(CLOSING[bracket] for bracket in reversed(opened))
    return TextExample(prompt="".join(opened) + "|", text=closed)


def majority(rng: random.Random) -> Example:
    """Words of letters and numbers; the label says which are more."""
    num_words = rng.choice((5, 7, 9))
    num_numbers = rng.choice((0, 1, num_words - 1, num_words))
    words = [str(rng.randrange(100)) for _ in range(num_numbers)]
    words += [_letters(rng, 1, 3) for _ in range(num_words - num_numbers)]
    rng.shuffle(words)
    label = "numbers" if 2 * num_numbers > num_words else "letters"
    return ClassificationExample(text=" ".join(words), label=label)


def entities(rng: random.Random) -> Example:
    """Words; those in capitals and the numbers are entities."""
    words, spans, start = [], [], 0
    for _ in range(rng.randint(3, 8)):
        kind = rng.choice(("", "", "NAME", "NUMBER"))
        word = str(rng.randrange(1000)) if kind == "NUMBER" else _letters(rng, 2, 5)
        word = word.upper() if kind == "NAME" else word
        if kind:
            spans.append(LabelledSpan(start=start, end=start + len(word), label=kind))
        words.append(word)
        start += len(word) + 1
    return TaggingExample(text=" ".join(words), spans=tuple(spans))


def find(rng: random.Random) -> Example:
    """A context with one number and one word in capitals; the question says which to find."""
    words = [_letters(rng, 2, 4) for _ in range(rng.randint(2, 5))]
    answers = {"number": str(rng.randrange(10, 1000)), "name": _letters(rng, 2, 4).upper()}
    words += answers.values()
    rng.shuffle(words)
    question = rng.choice(sorted(answers))
    before = words[: words.index(answers[question])]
    start = sum(len(word) + 1 for word in before)
    return AnswerExample(
        question=question,
        context=" ".join(words),
        start=start,
        end=start + len(answers[question]),
    )


def runs(rng: random.Random) -> Example:
    """Successive letters; in about half of the cases, the second text continues them."""
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    sizes = [rng.randint(4, 6) for _ in range(2)]
    start = rng.randrange(len(alphabet) - sum(sizes))
    middle = start + sizes[0]
    other = middle
    while rng.random() < 0.5 and other == middle:
        other = rng.randrange(len(alphabet) - sizes[1])
    return MaskedExample(
        text=" ".join(alphabet[start:middle]),
        following=" ".join(alphabet[other : other + sizes[1]]),
    )


def relevance(rng: random.Random) -> Example:
    """A query for a kind of words, and documents, one of which has such words."""
    numbers = " ".join(str(rng.randrange(100)) for _ in range(rng.randint(3, 6)))
    letters = " ".join(_letters(rng, 1, 3) for _ in range(rng.randint(3, 6)))
    documents = {"number": numbers, "word": letters}
    query = rng.choice(sorted(documents))
    relevant = documents.pop(query)
    return RankingExample(query=query, relevant=relevant, others=tuple(documents.values()))


def capitals(rng: random.Random) -> Example:
    """A query of lower-case letters, and documents of capitals, one of which has them all."""
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    relevant = rng.sample(alphabet, 5)
    query = rng.sample(relevant, 3)
    others: list[str] = []
    while len(others) < 3:
        other = rng.sample(alphabet, 5)
        if not set(query) <= set(other):
            others.append(_document(other))
    return RankingExample(query=" ".join(query), relevant=_document(relevant), others=tuple(others))


def _document(letters: list[str]) -> str:
    return ", ".join(letters).upper() + "."


TASKS: dict[str, Callable[[random.Random], Example]] = {
    "reverse": reverse,
    "dates": dates,
    "brackets": brackets,
    "majority": majority,
    "entities": entities,
    "find": find,
    "runs": runs,
    "relevance": relevance,
    "capitals": capitals,
    "shapes": shapes,
    "questions": questions,
    "captions": captions,
}
