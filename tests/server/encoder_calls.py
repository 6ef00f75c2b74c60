"""A long text, what a refused call says, and answers that are searched the slow way."""

from typing import Any

import grpc
import pytest
import torch

from client.errors import TriuneError
from tests import heads

LONG = " ".join(f"word{index} is é{index}" for index in range(40))


def refused(call: Any, *args: Any, **options: Any) -> TriuneError:
    with pytest.raises(TriuneError) as caught:
        call(*args, **options)
    assert caught.value.code == grpc.StatusCode.INVALID_ARGUMENT
    return caught.value


def fields(error: TriuneError) -> str:
    return error.violations[0].field


def reference_answers(question: str, context: str, longest: int) -> list[tuple[float, int, int]]:
    """Every span of the context by the product of its probabilities: the slow way."""
    encoded = heads.tokenizer()(question, context, return_tensors="pt")
    with torch.no_grad():
        out = heads.model("answerer")(**encoded)
    sequence = encoded.sequence_ids(0)
    kept = [0] + [i for i, number in enumerate(sequence) if number == 1]
    start = dict(zip(kept, out.start_logits[0, kept].softmax(-1).tolist(), strict=True))
    end = dict(zip(kept, out.end_logits[0, kept].softmax(-1).tolist(), strict=True))
    spans: dict[tuple[int, int], float] = {}
    for first in kept[1:]:
        for last in range(first, min(first + longest, kept[-1] + 1)):
            # Whole words, as the pipeline aligned them.
            characters = (
                encoded.word_to_chars(0, encoded.token_to_word(0, first), 1).start,
                encoded.word_to_chars(0, encoded.token_to_word(0, last), 1).end,
            )
            spans[characters] = max(spans.get(characters, 0.0), start[first] * end[last])
    none = start[0] * end[0]
    return sorted([(x, *key) for key, x in spans.items()] + [(none, 0, 0)], reverse=True)
