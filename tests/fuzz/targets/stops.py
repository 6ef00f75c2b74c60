"""Postprocessing as pure functions: stop strings, entities, answer spans."""

from collections.abc import Iterator

import numpy as np

from server.text.answers import find_answers
from server.text.entities import Aggregation, LabelledToken, find_entities
from server.text.stop_strings import StopStrings
from server.text.windows import TokenizedText, Window
from tests.fuzz.draw import Draw

SIZE = 128
LABELS = ("O", "B-PER", "I-PER", "E-PER", "S-PER", "PER", "B-", "L-x", "", "-", "B-PER-X", "I")


def run(data: bytes) -> None:
    draw = Draw(data)
    (_check_stops, _check_entities, _check_answers)[draw.byte() % 3](draw)


def seeds() -> Iterator[bytes]:
    for kind in range(3):
        for text in (b"ab\0aba\0c", b"2021-03-03", "é🙂🙂é".encode()):
            yield bytes([kind, 2, 1, 3, 0]) + text * 5


def _check_stops(draw: Draw) -> None:
    size = 1 + draw.byte() % 8
    stops = [text for text in draw.rest_as_texts(1 + draw.byte() % 4) if text]
    text = stops.pop() if stops else ""
    matcher = StopStrings(stops)
    released = "".join(
        matcher.push(text[position : position + size]) for position in range(0, len(text), size)
    )
    released += matcher.finish()
    matches = [position for stop in stops if (position := text.find(stop)) >= 0]
    assert matcher.is_matched == bool(matches)
    if not matches:
        assert released == text
        return
    # The stop string that ends first wins; with overlaps this depends on the chunks.
    assert text.startswith(released)
    assert any(text.startswith(stop, len(released)) for stop in stops)
    assert not any(stop in released for stop in stops)


def _check_entities(draw: Draw) -> None:
    labels = [draw.choice(LABELS) for _ in range(1 + draw.byte() % 6)]
    aggregation = draw.choice(tuple(Aggregation))
    tokens, position = [], 0
    for byte in draw.rest():
        scores = np.full(len(labels), 0.1, np.float32)
        scores[byte % len(labels)] = (byte >> 4) / 16
        start, position = position + (byte & 1), position + (byte & 1) + (byte >> 1 & 3)
        tokens.append(LabelledToken(scores, start, position, begins_word=bool(byte & 8)))
    last = 0
    for entity in find_entities(tokens, labels, aggregation):
        assert last <= entity.start <= entity.end <= position, (
            "entities are in the order of the text"
        )
        assert 0 <= entity.score <= 1
        last = entity.end


def _check_answers(draw: Draw) -> None:
    room, stride = 2 + draw.byte() % 6, draw.byte() % 2
    top_k, longest, allow_no_answer = 1 + draw.byte() % 6, 1 + draw.byte() % 6, draw.flag()
    bytes_ = draw.rest()
    windows, logits = [], []
    for first in range(0, max(1, len(bytes_) - stride), room - stride):
        part = bytes_[first : first + room]
        zeros = (0,) * (len(part) + 2)
        windows.append(Window(zeros, zeros, 1, first_token=first, num_text_tokens=len(part)))
        values = np.array([0, *part, 0], np.float32) / 16
        logits.append(np.stack([values, values[::-1]], -1).astype(np.float32))
    offsets = tuple((position, position + 1) for position in range(len(bytes_)))
    word_ids = tuple(None if byte == 0 else position // 2 for position, byte in enumerate(bytes_))
    text = TokenizedText(tuple(windows), offsets, word_ids, 0)
    spans = find_answers(
        text, logits, top_k=top_k, max_answer_tokens=longest, allow_no_answer=allow_no_answer
    )
    assert len(spans) <= top_k
    for span in spans:
        assert 0 <= span.start <= span.end <= len(bytes_)
        assert 0 <= span.score <= 1 + 1e-9
    assert [span.score for span in spans] == sorted((x.score for x in spans), reverse=True)
