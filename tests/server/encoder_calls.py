"""Helpers for encoder tests: a long text, expected errors, brute-force answer spans."""

from typing import Any

import grpc
import pytest
import torch

from client.errors import TriuneError
from tests import heads

LONG = " ".join(f"word{index} is é{index}" for index in range(40))


def error_of(call: Any, *args: Any, **options: Any) -> TriuneError:
    with pytest.raises(TriuneError) as caught:
        call(*args, **options)
    assert caught.value.code == grpc.StatusCode.INVALID_ARGUMENT
    return caught.value


def field_of(error: TriuneError) -> str:
    return error.violations[0].field


def reference_answers(question: str, context: str, longest: int) -> list[tuple[float, int, int]]:
    """Brute-force answer spans, sorted by the product of start and end probabilities."""
    encoded = heads.tokenizer()(question, context, return_tensors="pt")
    with torch.no_grad():
        out = heads.model("answerer")(**encoded)
    sequence = encoded.sequence_ids(0)
    context_tokens = [0] + [i for i, number in enumerate(sequence) if number == 1]
    start = dict(
        zip(context_tokens, out.start_logits[0, context_tokens].softmax(-1).tolist(), strict=True)
    )
    end = dict(
        zip(context_tokens, out.end_logits[0, context_tokens].softmax(-1).tolist(), strict=True)
    )
    spans: dict[tuple[int, int], float] = {}
    for first in context_tokens[1:]:
        for last in range(first, min(first + longest, context_tokens[-1] + 1)):
            # Extend to whole words, like the transformers pipeline.
            characters = (
                encoded.word_to_chars(0, encoded.token_to_word(0, first), 1).start,
                encoded.word_to_chars(0, encoded.token_to_word(0, last), 1).end,
            )
            spans[characters] = max(spans.get(characters, 0.0), start[first] * end[last])
    no_answer = start[0] * end[0]
    return sorted(
        [(score, *key) for key, score in spans.items()] + [(no_answer, 0, 0)], reverse=True
    )
