"""Shared by the tests of BERT-like encoders: small configurations, test axes and references."""

from typing import Any

from hypothesis import strategies as st
from torch import Tensor

from tests.families.harness import VOCABULARY_SIZE

SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY_SIZE,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 80,
    "max_position_embeddings": 32,
}
AXES: dict[str, st.SearchStrategy[Any]] = {
    "num_hidden_layers": st.integers(1, 3),
    "num_attention_heads": st.sampled_from((1, 2, 8)),
    "intermediate_size": st.sampled_from((48, 96)),
    "hidden_act": st.sampled_from(("gelu", "gelu_new", "relu")),
    "layer_norm_eps": st.sampled_from((1e-12, 1e-2)),
}
SEGMENTED = {**AXES, "type_vocab_size": st.integers(1, 3)}
FACTORISED = {**SEGMENTED, "embedding_size": st.sampled_from((24, 64))}


def hidden_with_consecutive_positions(model: Any, ids: Tensor) -> Tensor:
    """Hidden states of a family that computes positions from padding ids, such as RoBERTa.

    Random ids may contain the padding id; embeddings get consecutive positions.
    """
    embeddings = model.get_input_embeddings()(ids)
    hidden: Tensor = model.base_model(inputs_embeds=embeddings).last_hidden_state
    return hidden


def mean_with_consecutive_positions(model: Any, ids: Tensor) -> Tensor:
    """The mean of those hidden states."""
    return hidden_with_consecutive_positions(model, ids).mean(1)


def with_fixed_sinusoids(model: Any) -> Any:
    """RoFormer with its sinusoids as a buffer: parameters would be randomised."""
    table = model.base_model.encoder.embed_positions
    fixed = table.create_weight()
    del table.weight
    table.register_buffer("weight", fixed, persistent=False)
    return model
