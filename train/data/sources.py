"""The data sources that a recipe can name."""

import hashlib
import random
from collections.abc import Callable
from pathlib import Path

import msgspec

from model.bundle import Task
from model.examples import EXAMPLES, Example, parse_examples
from train.data.dataset import Dataset, Origin, hash_of
from train.data.debian import debian_corpus
from train.data.debian_packages import CORPORA, SUMMARIES, summaries_corpus
from train.data.lexicons import lexicon_corpus
from train.data.mnist import mnist_corpus
from train.data.one_file import file_dataset
from train.data.synthetic import TASKS
from train.errors import DataError, RecipeError
from train.recipe import ObjectiveKind, Recipe

OBJECTIVE_TASKS = {
    ObjectiveKind.NEXT_TOKEN: Task.GENERATE,
    ObjectiveKind.MASKED: Task.FILL_MASK,
    ObjectiveKind.SEQUENCE_TO_SEQUENCE: Task.TRANSLATE,
    ObjectiveKind.IMAGE_TO_TEXT: Task.GENERATE,
    ObjectiveKind.CLASSIFICATION: Task.CLASSIFY,
    ObjectiveKind.TOKEN_CLASSIFICATION: Task.TAG,
    ObjectiveKind.SPAN: Task.ANSWER,
    ObjectiveKind.RELEVANCE: Task.RERANK,
    ObjectiveKind.RETRIEVAL: Task.EMBED,
}
CORPUS_FILE = "corpus.json"
PARTS = ("train", "validation", "held_out")


class CorpusPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of JSON lines; its path is relative to the corpus."""

    file: str
    sha256: str


class Corpus(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``corpus.json`` in a data folder: the parts and their origins."""

    name: str
    train: CorpusPart
    validation: CorpusPart
    held_out: CorpusPart
    origins: tuple[Origin, ...]


def load_dataset(recipe: Recipe, folder: Path) -> Dataset:
    """The data set of ``recipe``.

    Args:
        folder: the recipe's folder; relative paths start there.

    Raises:
        DataError: files are missing or damaged.
        RecipeError: the source is unknown, or its examples are not those of the objective.
    """
    kind, _, name = recipe.data.source.partition(":")
    task = OBJECTIVE_TASKS[recipe.objective]
    dataset = SOURCES[kind](name, recipe, folder)
    if not isinstance(dataset.train[0], EXAMPLES[task]):
        raise RecipeError(
            f"data.source: {recipe.data.source} has {type(dataset.train[0]).__name__}, objective "
            f"{recipe.objective} needs {EXAMPLES[task].__name__}"
        )
    return dataset


def _synthetic(name: str, recipe: Recipe, _folder: Path) -> Dataset:
    """Examples of a synthetic task; the parts share no example."""
    if name not in TASKS:
        raise RecipeError(f"data.source: no synthetic task {name!r}; known: {', '.join(TASKS)}")
    data, rng = recipe.data, random.Random(recipe.seed)
    parts: list[list[Example]] = []
    seen: set[Example] = set()
    for size in (data.num_held_out, data.num_validation, data.num_train):
        part, reserved = [], frozenset(seen)
        for _ in range(100 * size):
            example = TASKS[name](rng)
            # Equal examples may repeat within training, but not across parts.
            if example not in reserved:
                part.append(example)
                seen.add(example)
            if len(part) == size:
                break
        if len(part) < size:
            raise RecipeError(f"data: the task {name} has fewer examples than the recipe needs")
        parts.append(part)
    held_out, validation, train = parts
    origin = Origin(
        name=f"synthetic {name}, seed {recipe.seed}",
        sha256=hash_of(train),
        license="Apache-2.0",
        num_examples=len(train),
    )
    return Dataset(
        name=f"synthetic-{name}",
        train=train,
        validation=validation,
        held_out=held_out,
        origins=(origin,),
    )


def _folder(name: str, recipe: Recipe, folder: Path) -> Dataset:
    """A folder with ``corpus.json``; every file's hash is checked."""
    path = folder / name
    try:
        data = (path / CORPUS_FILE).read_bytes()
        corpus = msgspec.json.decode(data, type=Corpus)
    except OSError as error:
        raise DataError(f"data.source: {path / CORPUS_FILE}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise DataError(f"{path / CORPUS_FILE}: {error}") from error
    try:
        parts = {part: _part(path, getattr(corpus, part), recipe) for part in PARTS}
    except OSError as error:
        raise DataError(f"data.source: {error.filename}: {error.strerror}") from error
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error
    limits = {"validation": recipe.data.num_validation, "held_out": recipe.data.num_held_out}
    return Dataset(
        name=corpus.name,
        origins=corpus.origins,
        **{part: examples[: limits.get(part)] for part, examples in parts.items()},
    )


def _file(name: str, recipe: Recipe, folder: Path) -> Dataset:
    return file_dataset(folder / name, OBJECTIVE_TASKS[recipe.objective], recipe)


def _part(path: Path, part: CorpusPart, recipe: Recipe) -> list[Example]:
    data = (path / part.file).read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    if digest != part.sha256:
        raise ValueError(f"{part.file}: SHA-256 is {digest}, not {part.sha256}")
    examples = parse_examples(data, OBJECTIVE_TASKS[recipe.objective], part.file)
    if not examples:
        raise ValueError(f"{part.file}: no examples")
    return examples


def _debian(name: str, recipe: Recipe, _folder: Path) -> Dataset:
    if name == SUMMARIES and recipe.objective == ObjectiveKind.NEXT_TOKEN:
        return summaries_corpus(recipe.data, as_messages=True)
    corpus = CORPORA.get(name)
    return debian_corpus(name, recipe.data) if corpus is None else corpus(recipe.data)


def _lexicon(name: str, recipe: Recipe, _folder: Path) -> Dataset:
    return lexicon_corpus(name, recipe.data)


def _images(name: str, recipe: Recipe, _folder: Path) -> Dataset:
    return mnist_corpus(name, recipe.data)


SOURCES: dict[str, Callable[[str, Recipe, Path], Dataset]] = {
    "synthetic": _synthetic,
    "folder": _folder,
    "file": _file,
    "debian": _debian,
    "lexicon": _lexicon,
    "images": _images,
}
