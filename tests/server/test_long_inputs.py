"""Texts beyond an encoder's maximum length: errors, truncation, windows."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from client.encoder_types import Aggregation, LongInput, Question
from client.sync import Client
from tests import heads
from tests.server.clients import connected
from tests.server.encoder_calls import LONG, error_of, reference_answers


@pytest.fixture(scope="module")
def client(head_bundles: Path) -> Iterator[Client]:
    with connected(head_bundles, "--threads", "1") as client:
        yield client


def test_long_inputs_fail_or_are_truncated_or_windowed(client: Client) -> None:
    error = error_of(client.embed, "embedder", ["short", LONG])
    assert error.violations[0].field == "inputs[1]"
    cut = {
        side: client.embed("embedder", LONG, long_input=side).outputs[0]
        for side in (LongInput.TRUNCATE_RIGHT, LongInput.TRUNCATE_LEFT)
    }
    ids = heads.tokenizer()(LONG, add_special_tokens=False)["input_ids"]
    for side, output in cut.items():
        capacity = heads.MAX_LENGTH - 2
        kept_ids = ids[:capacity] if side == LongInput.TRUNCATE_RIGHT else ids[-capacity:]
        assert output.reading.truncated_tokens == len(ids) - capacity
        assert output.values == pytest.approx(mean_vector([101, *kept_ids, 102]), abs=1e-4)
    windows = client.embed(
        "embedder", LONG, long_input=LongInput.WINDOWS, max_tokens=22, stride=5
    ).outputs[0]
    assert windows.reading.truncated_tokens == 0
    parts = [ids[i : i + 20] for i in range(0, len(ids), 15)]
    while len(parts) > 1 and len(ids) <= 15 * (len(parts) - 2) + 20:
        parts.pop()  # adds no new tokens
    assert windows.reading.windows == len(parts)
    vectors = np.array([mean_vector([101, *part, 102]) for part in parts])
    weights = np.array([len(part) for part in parts])[:, None]
    expected = (vectors * weights).sum(0) / weights.sum()
    assert windows.values == pytest.approx(expected, abs=1e-4)


def mean_vector(ids: list[int]) -> list[float]:
    with torch.no_grad():
        hidden = heads.model("embedder")(torch.tensor([ids])).last_hidden_state
    vector: list[float] = hidden[0].mean(0).tolist()
    return vector


def test_windows_return_no_duplicate_entities(client: Client) -> None:
    (output,) = client.tag("tagger", LONG, stride=10, aggregation=Aggregation.NONE).outputs
    assert output.reading.windows > 1
    assert output.reading.truncated_tokens == 0
    starts = [entity.start for entity in output.entities]
    assert starts == sorted(set(starts))
    (unfiltered,) = client.tag(
        "tagger", LONG, aggregation=Aggregation.NONE, ignored_labels=["nothing"]
    ).outputs
    offsets = heads.tokenizer()(LONG, add_special_tokens=False, return_offsets_mapping=True)
    assert [(x.start, x.end) for x in unfiltered.entities] == offsets["offset_mapping"]


def test_answer_is_the_best_over_all_windows(client: Client) -> None:
    question = "Which word?"
    options: Any = {"top_k": 3, "max_answer_tokens": 4}
    (output,) = client.answer("answerer", [Question(question, LONG)], stride=8, **options).outputs
    assert output.reading.windows > 1
    # Reference: each window as a separate context.
    capacity = heads.MAX_LENGTH - 3 - len(heads.tokenizer()(question)["input_ids"]) + 2
    offsets = heads.tokenizer()(LONG, add_special_tokens=False, return_offsets_mapping=True)[
        "offset_mapping"
    ]
    window_starts = range(0, len(offsets), capacity - 8)
    best: dict[tuple[int, int], float] = {}
    for first in window_starts:
        part = offsets[first : first + capacity]
        text = LONG[part[0][0] : part[-1][1]]
        for score, start, end in reference_answers(question, text, 4)[:12]:
            key = (start + part[0][0], end + part[0][0])
            if end:
                best[key] = max(score, best.get(key, 0.0))
        if first + capacity >= len(offsets):
            break
    top = max(best, key=lambda key: best[key])
    assert (output.spans[0].start, output.spans[0].end) == top
    assert output.spans[0].score == pytest.approx(best[top], abs=1e-4)


def test_rerank_scores_a_document_by_its_best_window(client: Client) -> None:
    query = "What is it?"
    result = client.rerank("judge", query, [LONG, "short"], long_input=LongInput.WINDOWS)
    row = next(x for x in result.outputs if x.index == 0)
    assert row.reading.windows > 1
    cut = client.rerank("judge", query, [LONG], long_input=LongInput.TRUNCATE_RIGHT).outputs[0]
    assert cut.reading.truncated_tokens > 0
    assert row.score >= cut.score - 1e-6  # the first window equals the truncated text


@pytest.mark.parametrize("pair", [("short one", LONG), (LONG, "short one"), (LONG, "\u200b")])
def test_truncation_cuts_the_longer_text_of_a_pair(client: Client, pair: tuple[str, str]) -> None:
    """The last second text has no tokens."""
    (output,) = client.classify("judge", pairs=[pair], long_input=LongInput.TRUNCATE_RIGHT).outputs
    encoded = heads.tokenizer()(*pair, truncation=True, return_tensors="pt")
    with torch.no_grad():
        logits = heads.model("judge")(**encoded).logits[0]
    assert output.usage.input_tokens == heads.MAX_LENGTH
    assert output.labels[0].score == pytest.approx(float(logits.sigmoid()), abs=1e-4)
