"""Recurrent encoder-decoders against ``torch.nn.GRU`` and ``LSTM``, and the papers' formulas."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from model.config import ModelConfig
from model.kernels import KeyValue, Step
from model.recurrent import EncodedSource, RecurrentDecoder, RecurrentEncoder
from model.recurrent_cells import Cell
from model.recurrent_config import AlignmentConfig, AlignmentKind, BridgeKind
from model.transformer import Transformer, from_weights, parameter_shapes
from tests.architectures import (
    GRU_ADDITIVE,
    GRU_FIXED,
    GRU_MAXOUT,
    HIDDEN_SIZE,
    LSTM_DOT,
    LSTM_GENERAL,
    RECURRENT,
    random_weights,
    recurrent_model,
)
from train.recipe import TrainingRecipe
from train.regularization import add_dropout

LENGTHS = torch.tensor([6, 2, 4], dtype=torch.int32)
IDS = torch.arange(18).view(3, 6) + 5
Floats = NDArray[np.float64]


def model_of(config: ModelConfig) -> Transformer:
    return from_weights(config, random_weights(config)).double()


def reference_encoder(config: ModelConfig, weights: dict[str, Tensor]) -> nn.RNNBase:
    """``torch.nn``'s own layers, with our weights."""
    recurrent, inputs = config.recurrent, config.embedding.size
    assert recurrent is not None
    assert inputs is not None
    kind = {"gru": nn.GRU, "lstm": nn.LSTM}[recurrent.cell]
    reference: nn.RNNBase = kind(
        inputs,
        recurrent.encoder_size,
        recurrent.num_encoder_layers,
        bidirectional=recurrent.bidirectional,
        batch_first=True,
    )
    state = {}
    for layer in range(recurrent.num_encoder_layers):
        for direction, suffix in list(enumerate(("", "_reverse")))[: recurrent.num_directions]:
            for ours, theirs in (("input", "ih"), ("recurrent", "hh")):
                name = f"encoder.layers.{layer}.{direction}.{ours}"
                state[f"weight_{theirs}_l{layer}{suffix}"] = weights[f"{name}.weight"].T
                state[f"bias_{theirs}_l{layer}{suffix}"] = weights[f"{name}.bias"]
    reference.load_state_dict(state)
    return reference.double()


@pytest.mark.parametrize("name", RECURRENT)
@torch.no_grad()
def test_encoder_equals_torch(name: str) -> None:
    """Ragged rows: outputs, zeros at padding, and every layer's last state."""
    config = RECURRENT[name]
    model, recurrent = model_of(config), config.recurrent
    assert recurrent is not None
    x = torch.randn(3, 6, config.embedding.size or 0, dtype=torch.float64)
    assert isinstance(model.encoder, RecurrentEncoder)
    encoded: EncodedSource = model.encoder(x, LENGTHS)
    packed = pack_padded_sequence(x, LENGTHS.long(), batch_first=True, enforce_sorted=False)
    outputs, states = reference_encoder(config, random_weights(config))(packed)
    expected, _ = pad_packed_sequence(outputs, batch_first=True)
    torch.testing.assert_close(encoded.vectors, model.encoder.output(expected))
    states = states if isinstance(states, tuple) else (states,)
    for kind, last in enumerate(states):  # [layers * directions, batch, size]
        for layer, parts in enumerate(last.split(recurrent.num_directions)):
            actual = encoded.states[layer][kind]
            torch.testing.assert_close(actual, torch.cat([*parts], -1))


@pytest.mark.parametrize("config", [GRU_FIXED, LSTM_DOT], ids=["gru", "lstm"])
@torch.no_grad()
def test_cells_equal_torch(config: ModelConfig) -> None:
    model = model_of(config)
    assert isinstance(model.decoder, RecurrentDecoder)
    assert config.recurrent is not None
    cell = model.decoder.layers[0]
    assert isinstance(cell, Cell)
    kind = {"gru": nn.GRUCell, "lstm": nn.LSTMCell}[config.recurrent.cell]
    reference = kind(cell.input.weight.shape[0], HIDDEN_SIZE).double()
    names = {"weight_ih": cell.input.weight.T, "weight_hh": cell.recurrent.weight.T}
    biases = {"bias_ih": cell.input.bias, "bias_hh": cell.recurrent.bias}
    reference.load_state_dict(names | biases)
    x = torch.randn(3, cell.input.weight.shape[0], dtype=torch.float64)
    state = tuple(
        torch.randn(3, HIDDEN_SIZE, dtype=torch.float64)
        for _ in range(1 if config is GRU_FIXED else 2)
    )
    expected = reference(x, state if len(state) > 1 else state[0])
    expected = expected if isinstance(expected, tuple) else (expected,)
    torch.testing.assert_close(cell(x, state), expected)


def softmax(scores: Floats) -> Floats:
    exponentials = np.exp(scores - scores.max())
    result: Floats = exponentials / exponentials.sum()
    return result


def test_alignments_follow_the_formulas() -> None:
    """Luong et al. 2015, section 3.1: ``score(h_t, h_s)`` of each kind, row by row."""
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(3, HIDDEN_SIZE))
    for kind in AlignmentKind:
        config = recurrent_model(
            cell="gru",
            encoder_size=HIDDEN_SIZE,
            alignment=AlignmentConfig(kind=kind, size=20),
        )
        model = model_of(config)
        assert isinstance(model.decoder, RecurrentDecoder)
        align = model.decoder.alignment
        assert align is not None
        vectors = rng.normal(size=(3, 6, HIDDEN_SIZE))
        source = torch.from_numpy(vectors)[:, None]
        weights = {name: w.detach().numpy() for name, w in align.state_dict().items()}
        with torch.no_grad():
            key = align.key(source)  # type: ignore[operator]
            step = Step.whole(torch.ones(3), LENGTHS)
            context, _ = align(torch.from_numpy(hidden), KeyValue(key, source), step)
        for row, length in enumerate(LENGTHS.tolist()):
            h, hs = hidden[row], vectors[row, :length]
            if kind == AlignmentKind.DOT:
                scores = hs @ h
            elif kind == AlignmentKind.GENERAL:
                scores = np.array([h @ (weights["key.weight"].T @ each) for each in hs])
            else:
                inner = h @ weights["query.weight"] + hs @ weights["key.weight"]
                scores = np.tanh(inner) @ weights["score.weight"][:, 0]
            np.testing.assert_allclose(context[row], softmax(scores) @ hs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", RECURRENT)
@torch.no_grad()
def test_rows_do_not_depend_on_their_batch(name: str) -> None:
    model = model_of(RECURRENT[name])
    targets = torch.arange(12).view(3, 4)
    lengths = torch.full((3,), 4)
    states = model.encode_source(IDS, LENGTHS)
    batched = model.decode(targets, Step.whole(lengths, LENGTHS), states).hidden
    for row, length in enumerate(LENGTHS.tolist()):
        one = LENGTHS[row : row + 1]
        states = model.encode_source(IDS[row : row + 1, :length], one)
        step = Step.whole(lengths[:1], one)
        alone = model.decode(targets[row : row + 1], step, states).hidden
        torch.testing.assert_close(batched[row], alone[0])


@torch.no_grad()
def test_maxout_readout_follows_the_formula() -> None:
    """Bahdanau et al. 2015, appendix A.2.2: ``max`` of pairs of ``U s' + V E y + C c``."""
    model = model_of(GRU_MAXOUT)
    assert isinstance(model.decoder, RecurrentDecoder)
    align = model.decoder.alignment
    assert align is not None
    weights = {name: w.detach().numpy() for name, w in model.decoder.state_dict().items()}
    states = model.encode_source(IDS, LENGTHS)
    step, token = Step.whole(torch.ones(3), LENGTHS), torch.tensor([[3], [4], [5]])
    actual = model.decode(token, step, states).hidden[:, 0].numpy()
    before = states[0]["hidden"]
    context, _ = align(before, KeyValue(states[0]["cross_key"], states[0]["cross_value"]), step)
    word = model.embedding.look_up(token)[:, 0]
    sizes = [before.shape[1], context.shape[1]]
    of_state, of_context, of_word = np.split(weights["readout.weight"], np.cumsum(sizes))
    outer = before.numpy() @ of_state + context.numpy() @ of_context + word.numpy() @ of_word
    outer += weights["readout.bias"]
    expected = np.maximum(outer[:, 0::2], outer[:, 1::2])
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-12)


@torch.no_grad()
def test_dropout_between_layers_leaves_the_first_input_and_the_states() -> None:
    """With nearly all of the lower layers' outputs dropped, only upper layers change."""
    model = model_of(LSTM_DOT).float()
    add_dropout(model, TrainingRecipe(num_steps=1, recurrent_dropout=0.999))
    states = {}
    for is_training in (False, True):
        model.train(is_training)
        source = model.encode_source(IDS, LENGTHS)
        step = Step.whole(torch.full((3,), 4), LENGTHS)
        decoded = model.decode(torch.arange(12).view(3, 4), step, source).states
        encoded = model.encoder(model.embedding.look_up(IDS), LENGTHS)
        states[is_training] = (encoded.states, decoded)
    (encoded, _), (dropped, _) = states[False], states[True]
    torch.testing.assert_close(encoded[0], dropped[0])
    assert not torch.allclose(encoded[1][0], dropped[1][0])
    upper, upper_dropped = (decoded[1]["hidden"] for _, decoded in states.values())
    assert not torch.allclose(upper, upper_dropped)


def test_input_feeding_and_previous_states_change_the_output() -> None:
    """The fed output and the context are inputs of the first layer."""
    fed, previous = (
        parameter_shapes(config)["decoder.layers.0.input.weight"][0]
        for config in (LSTM_GENERAL, GRU_ADDITIVE)
    )
    assert fed == 24 + 2 * HIDDEN_SIZE
    assert previous == 24 + 2 * 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bidirectional": True}, "copy states only between equally many layers"),
        ({"readout": False, "hidden_size": 72}, "without a readout, hidden_size is 64"),
        (
            {"alignment": AlignmentConfig(kind=AlignmentKind.DOT), "source_size": 24},
            "dot attention needs a decoder_size, 64, equal to",
        ),
    ],
)
def test_refuses_sizes_that_do_not_fit(options: dict[str, Any], message: str) -> None:
    config = recurrent_model(cell="gru", encoder_size=HIDDEN_SIZE, **options)
    assert config.recurrent is not None
    assert config.recurrent.bridge == BridgeKind.COPY
    with pytest.raises(ValueError, match=message):
        Transformer(config)
