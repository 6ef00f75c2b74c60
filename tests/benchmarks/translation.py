"""Texts with translations, translators to compare with, and what their benchmarks share."""

import gettext
import hashlib
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from client.sync import Client
from client.types import SentenceSplit
from export.ibm_model import lexical_probabilities
from export.importers.native import read_held_out
from model.bundle import MANIFEST_FILE, Task
from model.examples import TranslationExample
from model.native_checkpoint import HELD_OUT_FILE
from train.data.sources import load_dataset
from train.read_recipe import read_recipe

ROOT = Path(__file__).parents[2]
BATCH = 50  # texts of a request
EVERYDAY = Path(__file__).parent / "data" / "everyday-en-it.tsv"
LOCALES = Path("/usr/share/locale")
# Catalogues of messages by text domain; the Debian package of each.
CATALOGUES = {
    "appstream": "appstream",
    "apt": "apt",
    "bash": "bash",
    "coreutils": "coreutils",
    "dpkg": "dpkg",
    "findutils": "findutils",
    "glib20": "libglib2.0-data",
    "gsettings-desktop-schemas": "gsettings-desktop-schemas",
    "gtk20": "libgtk2.0-common",
    "man-db": "man-db",
    "systemd": "systemd",
    "tar": "tar",
}
MIN_WORDS, MAX_WORDS = 4, 60
_WORD = re.compile(r"\w+|[^\w\s]")

Translate = Callable[[Sequence[str]], list[str]]


def everyday() -> list[TranslationExample]:
    """Forty sentences about everyday life and their Italian translations, by this project."""
    lines = EVERYDAY.read_text("utf-8").splitlines()
    pairs = (line.split("\t") for line in lines)
    return [TranslationExample(source=source, target=target) for source, target in pairs]


def messages(locale: str) -> list[TranslationExample]:
    """Messages of programs and their translations, those with markup or placeholders left out.

    Raises:
        FileNotFoundError: a catalogue is not installed; the message names its Debian package.
    """
    found: dict[str, str] = {}
    for domain, package in CATALOGUES.items():
        path = LOCALES / locale / "LC_MESSAGES" / f"{domain}.mo"
        if not path.is_file():
            raise FileNotFoundError(f"{path}: install the Debian package {package}")
        with path.open("rb") as file:
            catalogue = gettext.GNUTranslations(file)
        for source, target in catalogue._catalog.items():  # type: ignore[attr-defined]
            if isinstance(source, str) and _is_plain(source) and _is_plain(target):
                found.setdefault(source.strip(), target.strip())
    pairs = [TranslationExample(source=source, target=target) for source, target in found.items()]
    return sorted(pairs, key=lambda pair: hashlib.sha256(pair.source.encode()).digest())


def reversed_pairs(pairs: Sequence[TranslationExample]) -> list[TranslationExample]:
    """The same pairs in the other direction."""
    return [TranslationExample(source=pair.target, target=pair.source) for pair in pairs]


def copy(texts: Sequence[str]) -> list[str]:
    """The baseline that leaves every text as it is."""
    return list(texts)


def word_lookup(pairs: Sequence[TranslationExample]) -> Translate:
    """The baseline that replaces each word by its likeliest translation, by IBM model 1."""
    words: dict[str, int] = defaultdict(lambda: len(words))
    rows = [
        ([words[w] for w in _split(pair.source)], [words[w] for w in _split(pair.target)])
        for pair in pairs
    ]
    table = lexical_probabilities(rows)
    best: dict[int, tuple[float, int]] = {}
    links = zip(table.sources, table.targets, table.probabilities, strict=True)
    for source, target, probability in links:
        best[int(source)] = max(best.get(int(source), (0.0, -1)), (probability, int(target)))
    spelled = list(words)

    def translate(texts: Sequence[str]) -> list[str]:
        return [" ".join(map(looked_up, _split(text))) for text in texts]

    def looked_up(word: str) -> str:
        entry = best.get(words[word]) if word in words else None
        return word if entry is None else spelled[entry[1]]

    return translate


def group_by_length(
    lengths: Sequence[int], bounds: Sequence[int]
) -> dict[tuple[int, int], list[int]]:
    """Indices of texts by first and last length, both included; the first group begins at 1.

    Groups without a text are left out.
    """
    groups: dict[tuple[int, int], list[int]] = {}
    first = 1
    for last in bounds:
        chosen = [index for index, length in enumerate(lengths) if first <= length <= last]
        if chosen:
            groups[first, last] = chosen
        first = last + 1
    return groups


def translations(examples: Iterable[Any]) -> list[TranslationExample]:
    """Those of ``examples`` that are translations."""
    return [example for example in examples if isinstance(example, TranslationExample)]


def held_out_pairs(model: str) -> list[TranslationExample]:
    """The held-out texts of a shipped model, with their translations or summaries."""
    path = ROOT / "models" / model / HELD_OUT_FILE
    return translations(read_held_out(path, Task.TRANSLATE, model).examples)


def training_pairs(model: str) -> list[TranslationExample]:
    """What a shipped model was trained on. They come through apt."""
    recipe = ROOT / "train" / "recipes" / f"{model}.toml"
    return translations(load_dataset(read_recipe(recipe), recipe.parent).train)


def export_bundle(source: str, bundle: Path, precision: str, changed: Path | None = None) -> None:
    """Writes a bundle without measuring its quality, unless one newer than ``changed`` exists."""
    manifest = bundle / "1" / MANIFEST_FILE
    if manifest.exists() and (
        changed is None or manifest.stat().st_mtime > changed.stat().st_mtime
    ):
        return
    shutil.rmtree(bundle, ignore_errors=True)
    command = [sys.executable, "-m", "export", source, "--out", str(bundle)]
    subprocess.run([*command, "--precision", precision, "--evaluate", "off"], check=True, cwd=ROOT)


def translate_all(client: Client, model: str, texts: Sequence[str], **options: Any) -> list[str]:
    """The translations of ``texts``, each as a whole, in requests of :data:`BATCH` texts."""
    return [
        output.text
        for start in range(0, len(texts), BATCH)
        for output in client.translate(
            model,
            list(texts[start : start + BATCH]),
            sentence_split=SentenceSplit.OFF,
            **options,
        ).outputs
    ]


def _split(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _is_plain(text: str) -> bool:
    is_short = MIN_WORDS <= len(text.split()) <= MAX_WORDS
    return is_short and not re.search(r"[%<>{}\n\t\\|=]|\$|_\w|--", text)
