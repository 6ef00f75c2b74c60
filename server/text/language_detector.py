"""Detects the language of texts."""

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from server.text.languages import base_language

# The detector takes about 3 µs per byte; more text does not change its result.
MAX_CHARACTERS = 1000
_loading = threading.Lock()


@dataclass(frozen=True, slots=True)
class DetectedLanguage:
    """One of the candidate codes, and the probability of it among the candidates."""

    language: str
    confidence: float


def detect_language(text: str, languages: Iterable[str]) -> list[DetectedLanguage]:
    """Ranks the languages that a text may be written in, most likely first.

    Blocks; the first call loads the detector, which takes seconds and 120 MB.

    Args:
        text: any text; only its beginning is read.
        languages: the codes of candidate languages. Those that the detector does not know are
            left out; of several codes for one language, the first is used.
    """
    codes: dict[str, str] = {}
    for code in languages:
        codes.setdefault(base_language(code), code)
    ranking = [
        (codes[base], score)
        for known, score in _identifier().rank(text[:MAX_CHARACTERS])
        if (base := base_language(known)) in codes
    ]
    total = sum(score for _, score in ranking)
    return [DetectedLanguage(code, score / total if total else 0.0) for code, score in ranking]


def _identifier() -> "_Identifier":
    with _loading:
        return _load()


class _Identifier:
    """py3langid's model of 97 languages."""

    def __init__(self) -> None:
        # The module loads slowly; most servers never need it.
        from py3langid.langid import MODEL_FILE, LanguageIdentifier  # noqa: PLC0415

        self._library = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)

    def rank(self, text: str) -> list[tuple[str, float]]:
        ranking: list[tuple[str, float]] = self._library.rank(text)
        return ranking


@cache
def _load() -> _Identifier:
    return _Identifier()
