"""Splitting texts into sentences, and joining them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.text.language_detector import detect_language
from server.text.languages import base_language, language_name, match_language
from server.text.sentences import sentence_spans, split_sentence, split_text

PIECES = [
    "Dr. ",
    "A b. ",
    "a. ",
    "\n",
    "\r\n",
    "\n\n",
    "- ",
    "1. ",
    "“",
    '"',
    "(",
    "。",
    "！",
    "😀",
    "x" * 70,
]


def sentences(text: str, language: str = "en") -> list[str]:
    return [text[start:end] for start, end in sentence_spans(text, language)]


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("en", "Dr. Smith of the U.S. came at 5 p.m. He left.", 2),
        ("en", 'She said "Go. Now." and left.  No period', 2),
        ("eng_Latn", "It cost $3.50, e.g. for bread. Ok?! Yes.", 3),
        ("de", "Das ist z. B. gut. Am 3. Oktober kam Dr. Müller. Und dann?", 3),
        ("pt_XX", "O Sr. Silva chegou. Ele disse: “Olá. Tudo bem?” Depois saiu.", 3),
        ("zho_Hans", "今天天气很好。我们去公园吧！", 2),
        ("written", "One. Two.", 2),
        ("en", "A heading\nThe text.\n\nMore", 3),
        ("en", "The line goes on\nand ends here. End", 2),
        ("en", "x" * 2500 + " y", 2),
        ("en", "*** 2024 ---", 0),
    ],
)
def test_number_of_sentences(language: str, text: str, expected: int) -> None:
    assert len(sentences(text, language)) == expected


def test_bullets_and_numbers_are_between_sentences() -> None:
    text = "1. First. 2. Second\n- third\n***\n"
    split = split_text(text, list(sentence_spans(text, "en")))
    assert sentences(text) == ["First.", "Second", "third"]
    assert split.separators == ("1. ", " 2. ", "\n- ", "\n***\n")


@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join), st.sampled_from(["en", "zh"]))
def test_sentences_and_separators_are_the_text(text: str, language: str) -> None:
    split = split_text(text, list(sentence_spans(text, language)))
    parts = [text[start:end] for start, end in split.spans]
    joined = [part + after for part, after in zip(parts, split.separators[1:], strict=True)]
    assert split.separators[0] + "".join(joined) == text
    assert not split.is_split or all(part == part.strip() != "" for part in parts)


def test_a_language_without_spaces_gets_them() -> None:
    text = "今天很好。你呢？"
    spans = list(sentence_spans(text, "zh"))
    assert split_text(text, spans, "zh", "en").separators == ("", " ", "")
    assert split_text(text, spans, "zh", "ja").separators == ("", "", "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("aa bb; cc, dd ee ff gg", ["aa bb; cc,", "dd ee ff gg"]),
        ("aaaaaaaaaaaaaaaaaaa", ["aaaaaaaaaa", "aaaaaaaaa"]),
    ],
)
def test_long_sentences_are_split_at_clauses(text: str, expected: list[str]) -> None:
    offsets = [None, *((at, at + 1) for at, letter in enumerate(text) if letter != " "), None]
    whole = f"Before. {text}"
    spans = split_sentence(whole, (8, len(whole)), offsets, 10)
    assert [whole[start:end] for start, end in spans] == expected


def test_a_clause_that_ends_inside_a_token_is_in_one_part() -> None:
    text = "今天很好，但是很冷"
    offsets = [(0, 2), (2, 4), (4, 6), (6, 7), (7, 9)]  # (4, 6) is "，但"
    spans = split_sentence(text, (0, len(text)), offsets, 3)
    assert [text[start:end] for start, end in spans] == ["今天很好，", "但是很冷"]


def test_language_codes() -> None:
    codes = ["en", "en-US", "eng_Latn", "en_XX", "written", "a" * 99]
    assert [base_language(code) for code in codes] == ["en", "en", "en", "en", "", ""]
    assert [language_name(code) for code in ("pt_BR", "xx")] == ["Portuguese (Brazil)", "xx"]
    available = ["pt", "pt_BR", "zho_Hans", "zho_Hant"]
    wanted = ["pt-PT", "pt-BR", "zh-TW", "zh", "fr", "?"]
    found = ["pt", "pt_BR", "zho_Hant", "zho_Hans", None, None]
    assert [match_language(code, available) for code in wanted] == found
    chinese = ["zh_Hant", "zh"]
    wanted = ["zh", "zh-CN", "zh-TW", "zh-HK", "zh-Hant-SG"]
    found = ["zh", "zh", "zh_Hant", "zh_Hant", "zh_Hant"]
    assert [match_language(code, chinese) for code in wanted] == found


def test_codes_of_macrolanguages_find_their_main_languages() -> None:
    pairs = {"ar": "arb_Arab", "arz": "arz_Arab", "fa": "pes_Arab", "no": "nob_Latn"}
    pairs |= {"nn": "nno_Latn", "zh": "zho_Hant", "yue": "yue_Hant"}
    codes = [*pairs.values()]
    assert {wanted: match_language(wanted, codes) for wanted in pairs} == pairs
    others = ["ar-SA", "nb-NO", "cmn"]
    assert [match_language(other, codes) for other in others] == [
        "arb_Arab",
        "nob_Latn",
        "zho_Hant",
    ]
    assert match_language("tw", ["aka_Latn", "twi_Latn"]) == "twi_Latn"


def test_detects_languages_by_codes_of_models() -> None:
    for text, code in (
        ("كيف حالك اليوم؟ الجو جميل جدا", "arb_Arab"),
        ("Dette er en setning på norsk som jeg skriver i dag.", "nob_Latn"),
        ("Magandang umaga sa inyong lahat, kumusta kayo ngayon?", "tl_XX"),
    ):
        candidates = ["eng_Latn", "arb_Arab", "nob_Latn", "tl_XX"]
        assert detect_language(text, candidates)[0].language == code
