"""Which HTML elements are inline, void, raw text, or not translated."""

import re

INLINE = frozenset(
    {
        *("a", "abbr", "acronym", "b", "bdi", "bdo", "big", "cite", "code", "data", "del", "dfn"),
        *("em", "font", "i", "img", "ins", "kbd", "label", "mark", "q", "rp", "rt", "ruby", "s"),
        *("samp", "small", "span", "strike", "strong", "sub", "sup", "time", "tt", "u", "var"),
        "wbr",
    }
)
VOID = frozenset(
    {
        *("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param"),
        *("source", "track", "wbr"),
    }
)
# Elements whose content is text without markup.
RAW_TEXT = frozenset({"iframe", "noembed", "noframes", "script", "style", "textarea", "xmp"})
_UNTRANSLATED = RAW_TEXT | {"math", "svg", "template"}
_TRANSLATE = re.compile(r"""\stranslate\s*=\s*["']?no["'\s/>]""", re.IGNORECASE)
_CLASS = re.compile(
    r"""\sclass\s*=\s*(?:"[^"]*\bnotranslate\b[^"]*"|'[^']*\bnotranslate\b[^']*'|notranslate[\s/>])""",
    re.IGNORECASE,
)


def is_untranslated(name: str, tag: str) -> bool:
    """Whether the element's content stays untranslated. ``tag`` is its begin tag's source."""
    if name in _UNTRANSLATED:
        return True
    return ("translate" in tag.lower() and _TRANSLATE.search(tag) is not None) or _CLASS.search(
        tag
    ) is not None
