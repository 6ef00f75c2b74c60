"""Longformer against transformers, with its first token or its question global."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    LongformerConfig,
    LongformerForQuestionAnswering,
    LongformerForSequenceClassification,
    LongformerModel,
)

from export.encoding import EncoderInputs, encode_in_graph
from export.graphs import export_graphs
from export.parity_reference import TOLERANCE
from export.runtime import Session
from model.transformer import from_weights
from tests.families.encoders import SEGMENTED, SMALL
from tests.families.harness import check_eager, check_graphs, imported


def hidden(model: Any, ids: Tensor) -> Tensor:
    is_global = torch.zeros_like(ids)
    is_global[:, 0] = 1
    embeddings = model.get_input_embeddings()(ids)
    result: Tensor = model(
        inputs_embeds=embeddings, global_attention_mask=is_global
    ).last_hidden_state
    return result[:, : ids.shape[1]]


def mean(model: Any, ids: Tensor) -> Tensor:
    return hidden(model, ids).mean(1)


def longformer(**changes: Any) -> Any:
    return LongformerModel(LongformerConfig(**SMALL | {"max_position_embeddings": 80} | changes))


@settings(max_examples=8)
@given(
    st.fixed_dictionaries(
        {
            **SEGMENTED,
            "num_hidden_layers": st.just(2),
            # Texts have up to 13 tokens.
            "attention_window": st.sampled_from((4, 6, [4, 32], [32, 8])),
        }
    )
)
def test_eager_matches_transformers(changes: dict[str, Any]) -> None:
    check_eager(longformer(**changes), expected=hidden)


def test_graphs_match_transformers() -> None:
    check_graphs("Longformer", longformer(num_hidden_layers=1, attention_window=4), expected=mean)


SEPARATOR = 2
# <s> question </s></s> context </s>, as Longformer's tokenizer writes pairs.
QUESTIONS = [
    [0, *range(10, 10 + question), SEPARATOR, SEPARATOR, *range(30, 30 + context), SEPARATOR]
    for question, context in ((4, 13), (1, 3), (8, 1))
]


def question_answering(**changes: Any) -> Any:
    shape = SMALL | {"max_position_embeddings": 80, "sep_token_id": SEPARATOR, "num_labels": 2}
    return LongformerForQuestionAnswering(LongformerConfig(**shape | changes))


def expected_logits(model: Any, row: list[int]) -> Any:
    """Without a mask of global tokens: the class itself takes those of the question."""
    output = model(torch.tensor([row]))
    return torch.stack([output.start_logits, output.end_logits], -1)[0, : len(row)].numpy()


# A question of 8 tokens and <s> need a window of 9 tokens on each side.
@pytest.mark.parametrize("window", [18, [18, 36]])
def test_questions_are_global(window: Any) -> None:
    model = question_answering(attention_window=window)
    with imported(model) as checkpoint:
        module = from_weights(checkpoint.config, checkpoint.weights)
        for row in QUESTIONS:
            ids, lengths = torch.tensor([row]), torch.tensor([len(row)], dtype=torch.int32)
            logits = module.pool(module.encode(ids, lengths, torch.zeros_like(ids)), lengths)
            np.testing.assert_allclose(logits[0], expected_logits(model, row), atol=TOLERANCE)


def test_graphs_have_global_questions(tmp_path: Path) -> None:
    """In a padded batch, with questions of different lengths."""
    model = question_answering(attention_window=18, num_hidden_layers=1)
    with imported(model) as checkpoint:
        graphs = export_graphs(checkpoint.config, checkpoint.weights, tmp_path)
        segments = [[0] * len(row) for row in QUESTIONS]
        outputs = encode_in_graph(
            Session(tmp_path, graphs["encode"]), EncoderInputs(QUESTIONS, segments)
        )
        for row, (logits,) in zip(QUESTIONS, outputs, strict=True):
            np.testing.assert_allclose(logits, expected_logits(model, row), atol=TOLERANCE)


def test_the_global_tokens_of_a_question_are_limited() -> None:
    """A window of 4 tokens on each side has room for 4: those after them are local."""
    with imported(question_answering(attention_window=8)) as checkpoint:
        stack = checkpoint.config.encoder
        assert stack is not None
        assert stack.global_before == SEPARATOR
        assert {layer.attention.num_global_tokens for layer in stack.layers if layer.attention} == {
            4
        }


def test_a_classifier_has_its_first_token_global() -> None:
    model = LongformerForSequenceClassification(
        LongformerConfig(**SMALL | {"max_position_embeddings": 80, "attention_window": 4})
    )
    with imported(model) as checkpoint:
        module = from_weights(checkpoint.config, checkpoint.weights)
        for row in QUESTIONS:
            ids, lengths = torch.tensor([row]), torch.tensor([len(row)], dtype=torch.int32)
            logits = module.pool(module.encode(ids, lengths, torch.zeros_like(ids)), lengths)
            np.testing.assert_allclose(logits[0], model(ids).logits[0], atol=TOLERANCE)
