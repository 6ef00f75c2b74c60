"""Matches language codes of models, such as ``eng_Latn`` and ``en_XX``, and BCP 47 tags."""

from collections.abc import Iterable
from functools import lru_cache

from langcodes import Language
from langcodes.tag_parser import LanguageTagError

MAX_CODE_CHARACTERS = 35  # the length that RFC 5646 recommends
_UNKNOWN = "und"
_NORWEGIAN = {"nb": "no"}  # Bokmål, which "no" usually means; CLDR prefers "nb"


@lru_cache(maxsize=1024)
def _tag(code: str) -> Language | None:
    if len(code) > MAX_CODE_CHARACTERS:
        return None
    try:
        return Language.get(code.replace("_XX", "").strip("_"))
    except LanguageTagError:
        return None


@lru_cache(maxsize=1024)
def base_language(code: str) -> str:
    """The language of a code without region and script, in ISO 639-1 if it has such a code.

    Returns "en" for ``en``, ``en-US``, ``eng_Latn`` and ``en_XX``; "ar" for ``arb_Arab``, which is
    what ``ar`` usually means (CLDR); an empty text for invalid codes.
    """
    tag = _tag(code)
    if tag is None:
        return ""
    base = tag.prefer_macrolanguage().language
    return _NORWEGIAN.get(base, base) if base and base != _UNKNOWN else ""


def language_name(code: str) -> str:
    """The English name of a language, such as "Brazilian Portuguese"; ``code`` if it has none."""
    tag = _tag(code)
    if tag is None or not base_language(code):
        return code
    name = str(tag.display_name())
    return code if name.startswith("Unknown language") else name


def match_language(wanted: str, available: Iterable[str]) -> str | None:
    """Finds the best code in ``available`` for the language ``wanted``; ``None`` if there is none.

    Prefers the same code, then the same tag in another spelling, then the same script, then any
    code of the language; of several, the code without region and script. ``pt-BR`` finds ``pt_BR``
    before ``pt``, ``pt-PT`` finds ``pt``, and ``zh-TW`` finds ``zh_Hant`` before ``zh``.
    """
    codes = list(available)
    if wanted in codes:
        return wanted
    tag = _tag(wanted)
    base = base_language(wanted)
    if tag is None or not base:
        return None
    same = [code for code in codes if _language(code) == tag.language]
    same = same or [code for code in codes if base_language(code) == base]
    script = tag.maximize().script
    same.sort(key=lambda code: base_language(code) != code)  # stable
    for preference in (
        [code for code in same if _tag(code) == tag],
        [code for code in same if _script(code) == script],
        same,
    ):
        if preference:
            return preference[0]
    return None


def _language(code: str) -> str | None:
    tag = _tag(code)
    return None if tag is None else tag.language


def _script(code: str) -> str | None:
    tag = _tag(code)
    return None if tag is None else tag.maximize().script
