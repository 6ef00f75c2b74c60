"""The trainer: learning rate schedule, targets and seed."""

import math

import pytest
import torch

from model.config import Kind, ModelConfig
from model.train import (
    IGNORED,
    TrainingConfig,
    causal_lm_batch,
    classification_batch,
    compute_loss,
    learning_rate_factor,
    train,
    translation_batch,
)
from model.transformer import from_weights
from tests.architectures import CLASSIFIER, LLAMA, VASWANI, random_weights


def test_learning_rate_warms_up_then_decays_as_inverse_square_root() -> None:
    factors = [learning_rate_factor(step, 100) for step in range(1, 401)]
    assert factors[49] == pytest.approx(0.5)
    assert max(factors) == factors[99] == pytest.approx(1.0)
    assert factors[399] == pytest.approx(0.5)
    assert factors[199] == pytest.approx(1 / math.sqrt(2))


def test_causal_lm_batch_predicts_each_next_id() -> None:
    batch = causal_lm_batch([[3, 4, 5, 1], [6, 1]], prompt_lengths=[2, 1])
    assert batch.inputs.tolist() == [[3, 4, 5], [6, 0, 0]]
    assert batch.lengths.tolist() == [3, 1]
    assert batch.targets.tolist() == [[IGNORED, 5, 1], [1, IGNORED, IGNORED]]


def test_translation_batch_shifts_targets_right() -> None:
    batch = translation_batch([[7, 8], [9]], [[3, 4, 1], [5, 1]], start=0)
    assert batch.inputs.tolist() == [[0, 3, 4], [0, 5, 0]]
    assert batch.targets.tolist() == [[3, 4, 1], [5, 1, IGNORED]]
    assert batch.sources is not None
    assert batch.sources.tolist() == [[7, 8], [9, 0]]


def test_ignored_targets_are_not_in_the_loss() -> None:
    """The loss is the mean over all targets of a batch that are not ignored."""
    model = from_weights(LLAMA, random_weights(LLAMA))
    long, short = [3, 4, 5, 6, 1], [7, 1]
    both = compute_loss(model, causal_lm_batch([long, short]), 0.1)
    alone = [compute_loss(model, causal_lm_batch([row]), 0.1) for row in (long, short)]
    expected = (4 * alone[0] + 1 * alone[1]) / 5
    assert both.item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("config", [LLAMA, VASWANI, CLASSIFIER])
def test_training_is_deterministic_and_reduces_the_loss(config: ModelConfig) -> None:
    rows = [[5, 9, 2, 1], [8, 8, 3, 1]]
    batch = {
        Kind.DECODER: causal_lm_batch(rows),
        Kind.ENCODER_DECODER: translation_batch(rows, rows, start=0),
        Kind.ENCODER: classification_batch(rows, [0, 2]),
    }[config.kind]
    training = TrainingConfig(num_steps=12, learning_rate=3e-3, warmup_steps=5, seed=3)
    losses: list[float] = []
    weights = train(config, [batch] * 12, training, lambda _, loss: losses.append(loss))
    assert losses[-1] < 0.7 * losses[0]
    again = train(config, [batch] * 12, training)
    assert all(torch.equal(weights[name], again[name]) for name in weights)
    other = train(config, [batch] * 12, TrainingConfig(num_steps=12, seed=4))
    assert not torch.equal(weights["embedding.tokens.weight"], other["embedding.tokens.weight"])


def test_too_few_batches_raise() -> None:
    batch = classification_batch([[1, 2]], [0])
    with pytest.raises(ValueError, match="2 batches for 3 steps"):
        train(CLASSIFIER, [batch] * 2, TrainingConfig(num_steps=3))
