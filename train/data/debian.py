"""Debian's package descriptions and their translations, as a parallel corpus.

The apt client downloads ``Translation-en`` and ``Translation-XX`` into a folder below ``build/``;
the machine's own package lists are not touched.
"""

import hashlib
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec

from model.examples import Example, TranslationExample
from train.data.dataset import Dataset, Origin
from train.errors import DataError
from train.recipe import DataRecipe

CACHE = Path("build/debian")
CACHE_VARIABLE = "TRIUNE_DEBIAN_LISTS"
LICENSE = "the free licence of each package (Debian Free Software Guidelines)"
# Pairs with a larger ratio of lengths are rarely translations.
MAX_LENGTH_RATIO = 2.5
MIN_CHARACTERS, MAX_CHARACTERS = 3, 600
_FILE = "*_debian_dists_*_main_i18n_Translation-{}*"


def debian_corpus(language: str, recipe: DataRecipe) -> Dataset:
    """Distinct paragraphs of descriptions in English and in ``language``, such as ``it``.

    All paragraphs of one package, and all equal paragraphs, are in the same part. A hash selects
    validation and held-out pairs, so they stay the same when the corpus grows.

    Raises:
        DataError: apt has no descriptions in that language, or cannot be run.
    """
    if not re.fullmatch(r"[a-z]{2,3}(_[A-Z]{2})?", language):
        raise DataError(f"data.source: {language!r} is not a language of Debian")
    files = {name: translation_file(name) for name in ("en", language)}
    if None in files.values():
        download(language)
        files = {name: translation_file(name) for name in ("en", language)}
    english, foreign = (descriptions(read_list(file, name), name) for name, file in files.items())
    pairs = list(parallel_paragraphs(english, foreign))
    if not pairs:
        raise DataError(f"Debian has no descriptions in {language!r}")
    parts: dict[str, list[Example]] = {"train": [], "validation": [], "held_out": []}
    for package, pair in pairs:
        parts[_part(package)].append(pair)
    for part in ("validation", "held_out"):  # cut by num_held_out, each is a sample of all packages
        parts[part].sort(key=digest_of)
    origins = tuple(
        Origin(
            name=f"Debian {name}: package descriptions",
            sha256=hashlib.sha256(read_list(file, name)).hexdigest(),
            license=LICENSE,
            num_examples=len(pairs),
            url="https://www.debian.org/international/l10n/ddtp",
        )
        for name, file in files.items()
    )
    return Dataset(
        name=f"debian-en-{language}",
        train=parts["train"],
        validation=parts["validation"][: recipe.num_validation],
        held_out=parts["held_out"][: recipe.num_held_out],
        origins=origins,
    )


def descriptions(data: bytes, language: str) -> dict[tuple[str, str], list[str]]:
    """By package and hash of the English text: the short description, then the paragraphs.

    Format: https://wiki.debian.org/DebianRepository/Format#Translation-LANG.
    """
    found = {}
    for stanza in data.decode("utf-8", errors="replace").split("\n\n"):
        fields = dict(re.findall(r"^([A-Za-z0-9_-]+): (.*(?:\n .*)*)", stanza, re.MULTILINE))
        text = fields.get(f"Description-{language}")
        if text is None:
            continue
        short, _, long = text.partition("\n")
        key = (fields.get("Package", ""), fields.get("Description-md5", ""))
        found[key] = [short.strip(), *paragraphs(long)]
    return found


def paragraphs(text: str) -> list[str]:
    """The paragraphs of a long description (Debian Policy, section 5.6.13).

    Lines with more than one leading space are verbatim or lists, and form paragraphs of their own.
    """
    result: list[str] = []
    is_open = False
    for line in text.splitlines():
        body = line[1:]
        if body.strip() == ".":
            is_open = False
        elif body.startswith(" "):
            is_item = re.match(r"\s*[-*+o•]\s+", body)
            if is_item or not is_open:
                result.append(re.sub(r"^\s*[-*+o•]\s+", "", body).strip())
                is_open = True
            else:
                result[-1] += f" {body.strip()}"
        elif is_open and not body.startswith(" "):
            result[-1] += f" {body.strip()}"
        else:
            result.append(body.strip())
            is_open = True
    return result


def parallel_paragraphs(
    english: dict[tuple[str, str], list[str]], foreign: dict[tuple[str, str], list[str]]
) -> Iterator[tuple[str, TranslationExample]]:
    """The group and the pair of each distinct paragraph.

    If descriptions have different numbers of paragraphs, only the short descriptions form a pair.
    """
    seen: dict[str, str] = {}
    for key, translated in foreign.items():
        original = english.get(key)
        if original is None:
            continue
        is_aligned = len(original) == len(translated)
        for source, target in zip(original, translated, strict=False):
            if source not in seen and is_pair(source, target):
                seen[source] = target
                # Versions and parts of a package have similar descriptions.
                group = re.split(r"[-0-9.]", key[0].removeprefix("lib"))[0]
                yield group, TranslationExample(source=source, target=target)
            if not is_aligned:
                break


def is_pair(source: str, target: str) -> bool:
    """Whether two paragraphs may be translations of each other."""
    sizes = sorted((len(source), len(target)))
    return (
        source != target
        and sizes[0] >= MIN_CHARACTERS
        and sizes[1] <= MAX_CHARACTERS
        and sizes[1] <= MAX_LENGTH_RATIO * sizes[0] + 10
        and "\ufffd" not in target
    )


def digest_of(example: Example) -> str:
    """A pseudo-random sort key of an example."""
    return hashlib.sha256(msgspec.json.encode(example)).hexdigest()


def _part(package: str) -> str:
    bucket = int(hashlib.sha256(package.encode()).hexdigest()[:8], 16) % 100
    return {0: "validation", 1: "held_out", 2: "held_out"}.get(bucket, "train")


def lists_folder() -> Path:
    """The folder of apt's downloaded lists."""
    return Path(os.environ.get(CACHE_VARIABLE, str(CACHE / "lists")))


def translation_file(language: str) -> Path | None:
    """The largest translation file: that of the main suite, not of its updates."""
    escaped = language.replace("_", "%5f")  # as apt writes it in names of files
    files = sorted(lists_folder().glob(_FILE.format(escaped)), key=lambda path: path.stat().st_size)
    exact = [
        path for path in files if path.name.partition("Translation-")[2].split(".")[0] == escaped
    ]
    return exact[-1] if exact else None


def download(language: str) -> None:
    """Downloads apt's package lists, and their descriptions in English and ``language``."""
    lists = lists_folder().absolute()
    (lists / "partial").mkdir(parents=True, exist_ok=True)
    options = {
        "Dir::State::Lists": lists,
        "Dir::Cache": lists.parent / "cache",
        "Acquire::Languages": f"en,{language}",
        "APT::Sandbox::User": "",
    }
    settings = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
    _run(["apt-get", "update", *settings])


def read_list(path: Path | None, language: str) -> bytes:
    """The contents of a list, decompressed if apt compressed it."""
    if path is None:
        raise DataError(f"apt has no package descriptions in {language!r}")
    return _run(["/usr/lib/apt/apt-helper", "cat-file", str(path)])


def _run(command: list[str]) -> bytes:
    try:
        return subprocess.run(command, check=True, capture_output=True).stdout
    except FileNotFoundError as error:
        raise DataError(f"{command[0]}: not installed; this data comes through apt") from error
    except subprocess.CalledProcessError as error:
        message = error.stderr.decode(errors="replace").strip()
        raise DataError(f"{command[0]} failed: {message}") from error
