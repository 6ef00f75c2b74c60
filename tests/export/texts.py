"""More than 2,000 real strings: prose, code, many scripts, edge cases.

The same on every run; other texts of this repository do not change them.
"""

import sys
import unicodedata
from pathlib import Path
from pydoc_data.topics import topics

from export.evaluation_texts import PASSAGES, SENTENCES
from export.importers.samples import ENGLISH_PROMPTS, ENGLISH_TEXTS, SOURCE_SENTENCES

PROMPTS = Path(__file__).parents[2] / "loadtest/data/prompts.txt"
NUM_TEXTS = 2000
EDGE_CASES = (
    "",
    " ",
    "a",
    "  two  spaces   and\ttabs\nand lines  ",
    "Ｆｕｌｌ ｗｉｄｔｈ, ﬁne ½ ™ ① …",
    "漢字とひらがな、カタカナ。한국어 문장입니다. 中文没有空格。",
    "emoji 🙂👍🏽 👩‍👩‍👧 🇵🇹 and on",
    "zero\u200bwidth, no\u00a0break, line\u2028separator, control\u0001, mark\ufeff",
    unicodedata.normalize("NFD", "Ação: tiếng Việt, e\u0302\u0301 à, Ångström"),
    "naïve café Zoë İstanbul straße ŒUVRE ǅ ﬀ",
    "Привет, мир! Ελληνικά γράμματα; שלום עולם، مرحبا بالعالم हिन्दी ไทย",
    "x" * 300,
    "1234567890 3.14159 1,000,000 2026-11-21T07:20:51Z 0xDEADBEEF",
    "don't can't it's we'll I'd they've DON'T",
    "https://example.org/a_b-c?d=e&f=%20#g user@example.com C:\\path\\file.txt",
)


def _scripts() -> list[str]:
    """Runs of 16 letters from all of Unicode's basic plane, and runs of emoji.

    Limited to Unicode 3.2: libraries disagree on the categories of newer characters.
    """
    starts = [
        *range(0xA0, 0x3000, 0x30),
        *range(0x3040, 0xD000, 0x400),
    ]
    rows = ("".join(map(chr, range(start, start + 16))) for start in starts)
    old, new = unicodedata.ucd_3_2_0.category, unicodedata.category
    known = ["".join(c for c in row if old(c) == new(c) and new(c)[0] in "LNPS") for row in rows]
    emoji = ["".join(map(chr, range(start, start + 8))) for start in range(0x1F300, 0x1F640, 64)]
    return [row for row in known if row] + emoji


def texts() -> list[str]:
    """At least :data:`NUM_TEXTS` distinct strings."""
    lines = PROMPTS.read_text("utf-8").splitlines()
    paragraphs = [part for topic in sorted(topics) for part in topics[topic].split("\n\n")]
    known = [*EDGE_CASES, *_scripts(), *PASSAGES, *ENGLISH_PROMPTS, *ENGLISH_TEXTS]
    for sentences in (*SENTENCES.values(), *SOURCE_SENTENCES.values()):
        known += sentences
    unique = list(dict.fromkeys([*known, *lines, *paragraphs]))[: NUM_TEXTS + 200]
    if len(unique) < NUM_TEXTS:
        raise RuntimeError(f"Python {sys.version} documents too little: {len(unique)} strings")
    return unique
