"""Batches, schedule, losses and steps of the trainer."""

import math

import pytest
import torch

from model.adaptive import Ponder
from model.config import ExpertsConfig, Kind, ModelConfig
from model.kernels import Step
from tests.architectures import CLASSIFIER, LLAMA, VASWANI
from tests.model.test_adaptive import ADAPTIVE
from tests.tiny_training import optimization
from train.batches import IGNORED, BatchOrder, Row, learning_rate_factor, make_batch, share_of
from train.recipe import TrainingRecipe
from train.regularization import add_dropout, balancing_loss, ponder_time
from train.steps import PenaltyWeights

RECIPE = TrainingRecipe(num_steps=12, learning_rate=3e-3, warmup_steps=5, label_smoothing=0.1)
TARGETS = ([5, 9, 2, 1], [8, 8, 3, 1])


def _row(kind: Kind, target: list[int]) -> Row:
    if kind == Kind.ENCODER:
        return Row(inputs=target, targets=[target[0] % 3])
    sources = target if kind == Kind.ENCODER_DECODER else None
    return Row(inputs=[0, *target[:-1]], targets=target, sources=sources)


def test_learning_rate_warms_up_then_decays_as_inverse_square_root() -> None:
    factors = [learning_rate_factor(step, 100) for step in range(1, 401)]
    assert factors[49] == pytest.approx(0.5)
    assert max(factors) == factors[99] == pytest.approx(1.0)
    assert factors[399] == pytest.approx(0.5)
    assert factors[199] == pytest.approx(1 / math.sqrt(2))


def test_the_default_peak_is_that_of_the_paper() -> None:
    steps = optimization(VASWANI, TrainingRecipe(num_steps=1, warmup_steps=4000))
    steps.num_steps = 3999
    assert steps.learning_rate == pytest.approx(VASWANI.hidden_size**-0.5 * 4000**-0.5)


def test_batches_hold_every_row_once_within_the_budget() -> None:
    lengths = [1 + (7 * index) % 31 for index in range(500)]
    order = BatchOrder(lengths, batch_tokens=64, seed=3)
    first, second = order.epoch(0), order.epoch(1)
    assert sorted(row for batch in first for row in batch) == list(range(500))
    assert all(len(batch) * max(lengths[row] for row in batch) <= 64 for batch in first)
    padded = sum(len(batch) * max(lengths[row] for row in batch) for batch in first)
    assert padded < 1.1 * sum(lengths)
    assert first != second
    assert first == BatchOrder(lengths, batch_tokens=64, seed=3).epoch(0)
    shares = [share_of(first[0], rank, 3) for rank in range(3)]
    assert sorted(row for share in shares for row in share) == sorted(first[0])


@pytest.mark.parametrize("config", [LLAMA, VASWANI, CLASSIFIER])
def test_training_is_deterministic_and_reduces_the_loss(config: ModelConfig) -> None:
    batch = make_batch([_row(config.kind, target) for target in TARGETS])
    results = []
    for seed in (3, 3, 4):
        steps = optimization(config, RECIPE, seed)
        losses = [steps.step([batch]).loss for _ in range(RECIPE.num_steps)]
        assert losses[-1] < 0.75 * losses[0]
        results.append(steps.module.model.state_dict())
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])
    name = "embedding.tokens.weight"
    assert not torch.equal(results[0][name], results[2][name])


def test_accumulated_batches_equal_one_batch() -> None:
    """Rows of different lengths: the mean is over all targets, not over batches."""
    rows = [_row(Kind.ENCODER_DECODER, target) for target in ([5, 9, 2, 4, 4, 1], [8, 1])]
    together = optimization(VASWANI, RECIPE)
    apart = optimization(VASWANI, RECIPE)
    for _ in range(3):
        one = together.step([make_batch(rows)])
        two = apart.step([make_batch([row]) for row in rows])
        assert one.num_tokens == two.num_tokens == 8
        assert two.loss == pytest.approx(one.loss, rel=1e-4)


def test_a_filler_changes_nothing() -> None:
    row = _row(Kind.DECODER, TARGETS[0])
    batches = [make_batch([row]), make_batch([row], is_filler=True)]
    assert batches[1].num_tokens == 0
    losses = [optimization(LLAMA, RECIPE).step(given).loss for given in (batches[:1], batches)]
    assert losses[0] == pytest.approx(losses[1])


def test_ignored_targets_are_not_in_the_loss() -> None:
    row = Row(inputs=[0, 5, 9], targets=[IGNORED, 9, 2])
    other = Row(inputs=[0, 5, 9], targets=[7, 9, 2])
    module = optimization(LLAMA, RECIPE).module.eval()
    losses = [module(make_batch([given]), 0.0)[0][0].item() for given in (row, other)]
    batch = make_batch([row])
    hidden = module.model.decode(batch.inputs, Step.whole(batch.lengths)).hidden
    logprobs = module.model.logits(hidden).log_softmax(-1)[0]
    assert losses[0] == pytest.approx(-(logprobs[1, 9] + logprobs[2, 2]).item(), rel=1e-4)
    assert losses[1] - losses[0] == pytest.approx(-logprobs[0, 7].item(), rel=1e-3)


def test_the_balancing_loss_is_one_for_a_balanced_router() -> None:

    config = ExpertsConfig(count=4, active=1, normalized=True)
    assert balancing_loss(torch.eye(4) * 1e-3, config).item() == pytest.approx(1.0, abs=1e-2)
    collapsed = torch.tensor([[50.0, 0.0, 0.0, 0.0]] * 4)
    assert balancing_loss(collapsed, config).item() == pytest.approx(4.0, abs=1e-3)


def test_dropout_is_active_in_training_only() -> None:

    recipe = TrainingRecipe(num_steps=1, residual_dropout=0.5, embedding_dropout=0.5)
    steps = optimization(VASWANI, recipe)
    add_dropout(steps.module.model, recipe)
    batch = make_batch([_row(Kind.ENCODER_DECODER, target) for target in TARGETS])

    def losses() -> list[float]:
        return [steps.module(batch, 0.0)[0][0].item() for _ in range(2)]

    first, second = losses()
    assert first != second
    steps.module.eval()
    first, second = losses()
    assert first == second


def test_ponder_time_is_of_valid_tokens() -> None:
    """Graves 2016, equation 14: the mean of ``N + R``; the padding's 9 steps do not count."""
    ponder = Ponder(
        updates=torch.tensor([[2, 3], [1, 9]], dtype=torch.int32),
        remainders=torch.tensor([[0.5, 0.1], [0.3, 0.0]]),
        lengths=torch.tensor([2, 1]),
    )
    assert ponder_time([ponder]).item() == pytest.approx((2.5 + 3.1 + 1.3) / 3)
    assert ponder_time([]).item() == 0


def test_a_ponder_cost_shortens_the_ponder_time() -> None:
    batch = make_batch([_row(Kind.ENCODER_DECODER, target) for target in TARGETS])
    times = {}
    for cost in (0.0, 0.5):
        steps = optimization(ADAPTIVE, RECIPE, weights=PenaltyWeights(ponder=cost))
        times[cost] = [steps.step([batch]).ponder_time for _ in range(12)]
    assert times[0.0][0] == times[0.5][0] > 1
    assert times[0.5][-1] < times[0.0][-1]
