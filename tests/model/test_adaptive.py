"""Adaptive computation time against the formulas of Graves 2016 and Dehghani et al. 2019."""

from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from model.adaptive import AdaptiveEncoder, Halting, record_ponder
from model.config import HaltingConfig, ModelConfig, StackConfig
from model.kernels import PositionEncodings, Step
from model.positions import sinusoids
from model.transformer import Transformer, from_weights
from tests.architectures import random_weights
from tests.export.test_literature import UNIVERSAL

NUM_STEPS = 6
IDS = torch.arange(20).view(4, 5)
LENGTHS = torch.tensor([5, 1, 4, 2], dtype=torch.int32)
Floats = NDArray[np.float64]


def adaptive(stack: StackConfig | None, epsilon: float = 0.01) -> StackConfig:
    assert stack is not None
    halting = HaltingConfig(epsilon=epsilon)
    return msgspec.structs.replace(stack, order=(0,) * NUM_STEPS, halting=halting)


def adaptive_model(config: ModelConfig, epsilon: float = 0.01) -> ModelConfig:
    return msgspec.structs.replace(
        config,
        encoder=adaptive(config.encoder, epsilon),
        decoder=adaptive(config.decoder, epsilon),
    )


ADAPTIVE = adaptive_model(UNIVERSAL)


def decided_weights(config: ModelConfig) -> dict[str, torch.Tensor]:
    """Random weights whose gates differ between tokens."""
    generator = torch.Generator().manual_seed(3)
    return {
        name: torch.randn(weight.shape, generator=generator) if "gate.weight" in name else weight
        for name, weight in random_weights(config).items()
    }


def model_of(config: ModelConfig) -> Transformer:
    return from_weights(config, decided_weights(config)).double()


class Reference:
    """Graves 2016, equations 5 to 14, for one token, in plain Python.

    ``probabilities``: ``h`` of each step.
    """

    def __init__(self, probabilities: list[float], epsilon: float) -> None:
        total, self.weights = 0.0, list[float]()
        for index, probability in enumerate(probabilities):
            self.num_steps = index + 1
            if total + probability >= 1 - epsilon or self.num_steps == len(probabilities):
                self.remainder = 1 - total
                self.weights.append(self.remainder)
                break
            self.weights.append(probability)
            total += probability


def halt(probabilities: Floats, epsilon: float) -> tuple[Floats, Floats, Floats]:
    """Our weights, updates and remainders of ``probabilities [steps, tokens]``."""
    halting = Halting(1, HaltingConfig(epsilon=epsilon)).double()
    torch.nn.init.ones_(halting.gate.weight)
    torch.nn.init.zeros_(halting.gate.bias)  # type: ignore[arg-type]
    logits = torch.from_numpy(np.log(probabilities / (1 - probabilities)))
    progress, weights = halting.begin(logits[0][None, :, None]), []
    with torch.no_grad():
        for index, x in enumerate(logits):
            inputs = x[None, :, None]
            is_last = index + 1 == len(logits)
            weight = halting.weigh(inputs, progress, is_last=is_last)
            progress = halting.update(weight, inputs, progress)
            weights.append(weight[0].numpy())
    return np.stack(weights), progress.updates[0].numpy(), progress.remainders[0].numpy()


@pytest.mark.parametrize("epsilon", [0.01, 0.3])
def test_weights_follow_graves(epsilon: float) -> None:
    rng = np.random.default_rng(0)
    probabilities = rng.uniform(0.02, 0.999, (NUM_STEPS, 80)) ** rng.uniform(0.0, 4.0, 80)
    weights, updates, remainders = halt(probabilities, epsilon)
    expected = [Reference(column.tolist(), epsilon) for column in probabilities.T]
    assert {reference.num_steps for reference in expected} == set(range(1, NUM_STEPS + 1))
    for token, reference in enumerate(expected):
        padded = np.pad(reference.weights, (0, NUM_STEPS - len(reference.weights)))
        np.testing.assert_allclose(weights[:, token], padded, atol=1e-12)
        assert updates[token] == reference.num_steps
        assert remainders[token] == pytest.approx(reference.remainder)


@torch.no_grad()
def test_encoder_follows_dehghani() -> None:
    """Section 2.2, token by token: a halted token's state is copied to later steps."""
    model, size = model_of(ADAPTIVE), ADAPTIVE.hidden_size
    assert isinstance(model.encoder, AdaptiveEncoder)
    layer, gate = model.encoder.layers[0], model.encoder.halting.gate
    with record_ponder(model) as ponders:
        actual = model.encode(IDS, LENGTHS)
    (ponder,) = ponders
    assert len(set(ponder.updates.flatten().tolist())) > 2
    for row, length in enumerate(LENGTHS.tolist()):
        states = model.embedding.look_up(IDS[row : row + 1, :length])[0]
        history: list[list[Any]] = [[] for _ in range(length)]
        probabilities: list[list[float]] = [[] for _ in range(length)]
        halted = [False] * length
        for time in range(1, NUM_STEPS + 1):
            inputs = states + sinusoids(length, size) + sinusoids(NUM_STEPS + 1, size)[time]
            new = layer(inputs[None], LENGTHS[row : row + 1], PositionEncodings())[0]
            states = states.clone()
            for token in range(length):
                if halted[token]:
                    continue
                probabilities[token].append(float(torch.sigmoid(gate(inputs[token]))))
                history[token].append(new[token])
                states[token] = new[token]
                halted[token] = sum(probabilities[token]) >= 0.99
        for token in range(length):
            reference = Reference(probabilities[token], 0.01)
            pairs = zip(reference.weights, history[token], strict=True)
            torch.testing.assert_close(actual[row, token], sum(w * s for w, s in pairs))
            assert ponder.updates[row, token] == reference.num_steps
            assert float(ponder.remainders[row, token]) == pytest.approx(reference.remainder)


@torch.no_grad()
def test_decoder_with_a_cache_equals_a_whole_run() -> None:
    """Later tokens see the keys and values that halted ones have at every step."""
    model = model_of(ADAPTIVE)
    whole = torch.tensor([5, 5, 5, 5])
    source = model.encode_source(IDS, LENGTHS)
    with record_ponder(model) as ponders:
        expected = model.decode(IDS, Step.whole(whole, LENGTHS), source).hidden
    (ponder,) = ponders
    assert len(set(ponder.updates.flatten().tolist())) > 2
    states = [dict(state) for state in source]
    for state in states:
        state["key"] = state["value"] = torch.zeros(4, 4, 5, 16, dtype=torch.float64)
    for index in range(5):
        step = Step(
            torch.full((4,), index, dtype=torch.int32),
            torch.ones(4, dtype=torch.int32),
            torch.tensor(index + 1),
            LENGTHS,
            LENGTHS.amax(),
        )
        with record_ponder(model) as ponders:
            output = model.decode(IDS[:, index : index + 1], step, states)
        states = output.states
        torch.testing.assert_close(output.hidden[:, 0], expected[:, index])
        torch.testing.assert_close(ponders[0].updates[:, 0], ponder.updates[:, index])


@torch.no_grad()
def test_selected_tokens_equal_those_of_a_whole_run() -> None:
    model = model_of(ADAPTIVE)
    step = Step.whole(torch.tensor([5, 5, 5, 5]), LENGTHS)
    source = model.encode_source(IDS, LENGTHS)
    with record_ponder(model) as ponders:
        full = model.decode(IDS, step, source).hidden.flatten(0, 1)
        positions = torch.tensor([19, 3, 3])
        some = model.decode(IDS, step, source, logit_positions=positions).hidden
    torch.testing.assert_close(some[0], full[positions])
    for all_tokens, selected in zip(ponders[0][:2], ponders[1][:2], strict=True):
        torch.testing.assert_close(selected[0], all_tokens.flatten()[positions])


@torch.no_grad()
def test_a_gate_that_never_opens_leaves_fixed_steps() -> None:
    """The last state has weight 1."""
    assert ADAPTIVE.encoder is not None
    fixed = msgspec.structs.replace(
        UNIVERSAL, encoder=msgspec.structs.replace(ADAPTIVE.encoder, halting=None)
    )
    weights = random_weights(ADAPTIVE)
    weights["encoder.halting.gate.weight"] *= 0
    weights["encoder.halting.gate.bias"] = torch.tensor([-60.0])
    expected = from_weights(fixed, random_weights(fixed)).encode(IDS, LENGTHS)
    shared = {name: weight for name, weight in random_weights(fixed).items() if "encoder" in name}
    actual = from_weights(ADAPTIVE, weights | shared).encode(IDS, LENGTHS)
    torch.testing.assert_close(actual, expected)
