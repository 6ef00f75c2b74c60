"""Debian's packages in English: sections, summaries, and the description of a summary."""

import hashlib
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from model.examples import (
    ChatTurn,
    ClassificationExample,
    Example,
    RankingExample,
    TextExample,
    TranslationExample,
)
from train.data.bm25 import Bm25
from train.data.dataset import Dataset, Origin, sha256_of
from train.data.debian import (
    LICENSE,
    descriptions,
    digest_of,
    download,
    lists_folder,
    read_list,
    translation_file,
)
from train.errors import DataError
from train.recipe import DataRecipe

MAX_WORDS = 60  # in a long description
MIN_WORDS = 12  # in a document to rank or to summarize
SUMMARIES = "summaries"
MIN_SUMMARY = 2  # words
REQUEST = "Summarize this software package in one line."
# Out of 100 groups of packages with one source.
NUM_VALIDATION, NUM_HELD_OUT = 3, 8
NUM_MINED, NUM_RANDOM = 3, 1  # negatives per training query
NUM_CANDIDATES = 20  # documents per held-out query
T = TypeVar("T")
_FILE = "*_debian_dists_*_main_binary-*_Packages*"


@dataclass(frozen=True, kw_only=True)
class Package:
    """``group``: shared by similar sources. ``long``: at most :data:`MAX_WORDS` words."""

    name: str
    group: str
    section: str
    short: str
    long: str


def sections_corpus(recipe: DataRecipe) -> Dataset:
    """Distinct descriptions of packages, labelled with sections: ``recipe.labels``, or all.

    Raises:
        DataError: apt has no lists, or cannot be run.
    """
    packages, origins = _packages()
    examples: dict[str, tuple[str, Example]] = {}
    for package in packages:
        if package.section in recipe.labels or not recipe.labels:
            text = f"{package.short}. {package.long}"
            example = ClassificationExample(text=text, label=package.section)
            examples.setdefault(package.long or text, (package.group, example))
    if not examples:
        raise DataError("data.labels: Debian has no packages in these sections")
    parts = _parts(examples.values())
    return _dataset("debian-sections", recipe, parts, origins)


def relevance_corpus(recipe: DataRecipe) -> Dataset:
    """Summaries as queries; the documents are the long descriptions.

    The negatives of a query are the best by BM25 among those of its part and, in training, also
    some of the same section. Held-out and validation documents come from packages that
    training does not see.

    Raises:
        DataError: apt has no lists, or cannot be run.
    """
    parts, origins = relevance_parts()
    limits = {"train": recipe.num_train, "validation": recipe.num_validation}
    limits["held_out"] = recipe.num_held_out
    examples: dict[str, list[Example]] = {
        name: list(_queries(part, limits[name], is_training=name == "train"))
        for name, part in parts.items()
    }
    return _dataset("debian-relevance", recipe, examples, origins)


def relevance_parts() -> tuple[dict[str, list[Package]], tuple[Origin, ...]]:
    """All packages of each part of :func:`relevance_corpus`.

    Raises:
        DataError: apt has no lists, or cannot be run.
    """
    packages, origins = _packages()
    chosen: dict[str, tuple[str, Package]] = {}
    summaries: set[str] = set()
    for package in packages:
        is_long = len(package.long.split()) >= MIN_WORDS
        if is_long and package.long not in chosen and package.short not in summaries:
            chosen[package.long] = (package.group, package)
            summaries.add(package.short)
    parts = {
        name: sorted(part, key=lambda package: _digest(package.long))
        for name, part in _by_part(chosen.values()).items()
    }
    return parts, origins


def summaries_corpus(recipe: DataRecipe, *, as_messages: bool = False) -> Dataset:
    """Long descriptions as sources, one-line summaries as targets.

    ``as_messages``: as what a user asks and an assistant answers.

    Raises:
        DataError: apt has no lists, or cannot be run.
    """
    packages, origins = _packages()
    examples: dict[str, tuple[str, Example]] = {}
    for package in packages:
        if len(package.long.split()) >= MIN_WORDS and len(package.short.split()) >= MIN_SUMMARY:
            example: Example = TranslationExample(source=package.long, target=package.short)
            if as_messages:
                asked = ChatTurn(role="user", content=f"{REQUEST}\n\n{package.long}")
                answer = ChatTurn(role="assistant", content=package.short)
                example = TextExample(messages=(asked, answer))
            examples.setdefault(package.long, (package.group, example))
    return _dataset("debian-summaries", recipe, _parts(examples.values()), origins)


def _queries(
    packages: Sequence[Package], num: int, *, is_training: bool
) -> Iterator[RankingExample]:
    """One query for each of the first ``num`` packages."""
    index = Bm25([package.long for package in packages])
    by_section: dict[str, list[int]] = {}
    for number, package in enumerate(packages):
        by_section.setdefault(package.section, []).append(number)
    rng = random.Random(0)
    for number, package in enumerate(packages[:num]):
        best = index.best(package.short, NUM_CANDIDATES)
        others = [other for other in best if other != number]
        if is_training:
            others = rng.sample(others, min(NUM_MINED, len(others)))
            others += rng.choices(by_section[package.section], k=NUM_RANDOM)
        yield RankingExample(
            query=package.short,
            relevant=package.long,
            others=tuple(
                packages[other].long
                for other in dict.fromkeys(others[: NUM_CANDIDATES - 1])
                if other != number
            ),
        )


def _packages() -> tuple[list[Package], tuple[Origin, ...]]:
    """Every package with a description, and the two lists that they are read from."""
    if translation_file("en") is None or not list(lists_folder().glob(_FILE)):
        download("en")
    found = sorted(lists_folder().glob(_FILE), key=lambda path: path.stat().st_size)
    if not found:
        raise DataError("apt has no lists of Debian's packages")
    lists, texts = read_list(found[-1], "packages"), read_list(translation_file("en"), "en")
    by_name = {name: text for (name, _), text in descriptions(texts, "en").items()}
    packages = [
        package
        for stanza in lists.decode("utf-8", errors="replace").split("\n\n")
        if (package := _package(stanza, by_name)) is not None
    ]
    origins = tuple(
        Origin(
            name=name,
            sha256=sha256_of(data),
            license=LICENSE,
            num_examples=len(packages),
            url="https://www.debian.org/distrib/packages",
        )
        for name, data in (
            ("Debian: list of packages", lists),
            ("Debian en: package descriptions", texts),
        )
    )
    return packages, origins


def _package(stanza: str, texts: dict[str, list[str]]) -> Package | None:
    """A package from its stanza; None without a description.

    Format: https://wiki.debian.org/DebianRepository/Format#A.22Packages.22_Indices.
    """
    fields: dict[str, str] = dict(
        re.findall(r"^(Package|Source|Section): (\S+)", stanza, re.MULTILINE)
    )
    name = fields.get("Package", "")
    if name not in texts:
        return None
    short, *paragraphs = texts[name]
    source = fields.get("Source", name)
    return Package(
        name=name,
        group=re.split(r"[-0-9.]", source.removeprefix("lib"))[0],
        section=fields.get("Section", "").rpartition("/")[2],
        short=short,
        long=" ".join(" ".join(paragraphs).split()[:MAX_WORDS]),
    )


def _parts(examples: Iterable[tuple[str, Example]]) -> dict[str, list[Example]]:
    return {name: sorted(part, key=digest_of) for name, part in _by_part(examples).items()}


def _by_part(items: Iterable[tuple[str, T]]) -> dict[str, list[T]]:
    """Divides items into parts; items of one group are in the same part."""
    parts: dict[str, list[T]] = {"train": [], "validation": [], "held_out": []}
    for group, item in items:
        bucket = int(_digest(group)[:8], 16) % 100
        is_validation = bucket < NUM_VALIDATION
        is_held_out = bucket < NUM_VALIDATION + NUM_HELD_OUT
        name = "validation" if is_validation else "held_out" if is_held_out else "train"
        parts[name].append(item)
    return parts


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _dataset(
    name: str, recipe: DataRecipe, parts: dict[str, list[Example]], origins: tuple[Origin, ...]
) -> Dataset:
    return Dataset(
        name=name,
        train=parts["train"],
        validation=parts["validation"][: recipe.num_validation],
        held_out=parts["held_out"][: recipe.num_held_out],
        origins=origins,
    )


CORPORA: dict[str, Callable[[DataRecipe], Dataset]] = {
    "sections": sections_corpus,
    "relevance": relevance_corpus,
    SUMMARIES: summaries_corpus,
}
