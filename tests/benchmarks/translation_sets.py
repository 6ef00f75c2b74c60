"""Texts with translations that no training of ours saw, and translators to compare with."""

import gettext
import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from export.ibm_model import lexical_probabilities
from model.examples import TranslationExample

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


def by_length(
    pairs: Sequence[TranslationExample], bounds: Sequence[int]
) -> dict[tuple[int, int], list[int]]:
    """Indices of the pairs by words of the source: first and last length, both included."""
    groups: dict[tuple[int, int], list[int]] = {}
    first = 1
    for last in bounds:
        chosen = [i for i, pair in enumerate(pairs) if first <= len(pair.source.split()) <= last]
        if chosen:
            groups[first, last] = chosen
        first = last + 1
    return groups


def _split(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _is_plain(text: str) -> bool:
    is_short = MIN_WORDS <= len(text.split()) <= MAX_WORDS
    return is_short and not re.search(r"[%<>{}\n\t\\|=]|\$|_\w|--", text)
