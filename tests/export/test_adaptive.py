"""Adaptive computation time in graphs: numbers of updates, cached decoding, int8."""

import dataclasses
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from export.bundle_writer import write_bundle
from export.checkpoint import Checkpoint
from export.decoding import lengths_of, padded, prefill_source
from export.encoding import EncoderInputs, encode_eagerly, encode_in_graph
from export.fidelity.subject import GraphFolder
from export.float64_reference import float64_model
from export.graphs import export_graphs
from export.parity import compare_fp32
from export.parity_reference import TOLERANCE
from export.runtime import Session
from model.adaptive import record_ponder
from model.bundle import Precision
from model.config import ModelConfig, StackConfig
from model.graph_spec import REMAINDERS, UPDATES
from model.kernels import Step
from tests.architectures import BERT, checkpoint
from tests.model.test_adaptive import ADAPTIVE, adaptive, decided_weights

NUM_STEPS = 4  # each is traced anew


def with_few_steps(config: ModelConfig) -> ModelConfig:
    stacks = {
        name: msgspec.structs.replace(stack, order=(0,) * NUM_STEPS)
        for name, stack in (("encoder", config.encoder), ("decoder", config.decoder))
        if stack is not None
    }
    return msgspec.structs.replace(config, **stacks)


assert BERT.encoder is not None
ENCODER = with_few_steps(
    msgspec.structs.replace(BERT, encoder=adaptive(StackConfig(layers=BERT.encoder.layers[:1])))
)
TRANSLATOR = with_few_steps(ADAPTIVE)
ROWS = [[7, 8, 9, 10, 11], [5], [30, 31, 32]]


def checkpoint_of(config: ModelConfig, like: str) -> Checkpoint:
    return dataclasses.replace(checkpoint(like), config=config, weights=decided_weights(config))


@pytest.mark.slow
def test_encoder_graph_matches_the_eager_module(tmp_path: Path) -> None:
    """Vectors, updates and remainders, in a padded batch."""
    source = checkpoint_of(ENCODER, "bert")
    graphs = export_graphs(source.config, source.weights, tmp_path)
    assert compare_fp32(source, tmp_path, graphs).max_absolute_error <= TOLERANCE
    inputs = EncoderInputs.of(source.config, ROWS)
    actual = encode_in_graph(Session(tmp_path, graphs["encode"]), inputs)
    with torch.inference_mode():
        expected = encode_eagerly(float64_model(source.config, source.weights), inputs)
    found: set[int] = set()
    for outputs, references in zip(actual, expected, strict=True):
        *_, updates, remainders = outputs
        np.testing.assert_array_equal(updates, references[-2])
        np.testing.assert_allclose(remainders, references[-1], atol=TOLERANCE)
        found |= set(updates.tolist())
    assert len(found) > 2


@pytest.mark.slow
def test_decoder_graph_matches_the_eager_module(tmp_path: Path) -> None:
    """Ragged rows over the cache; every step has the updates of a whole run."""
    source = checkpoint_of(TRANSLATOR, "vaswani")
    graphs = export_graphs(source.config, source.weights, tmp_path)
    reference = compare_fp32(source, tmp_path, graphs)
    assert reference.tokens_equal == reference.tokens_compared > 0
    folder = GraphFolder(tmp_path, graphs)
    targets = [[1, 20, 21, 22], [2, 23], [3, 24, 25]]
    decoder = folder.decoder(3, 4, 5)
    prefill_source(folder.encoder(), decoder, ROWS)
    model = float64_model(source.config, source.weights)
    ids, lengths, source_lengths = padded(targets), lengths_of(targets), lengths_of(ROWS)
    with torch.inference_mode(), record_ponder(model) as ponders:
        states = model.encode_source(
            torch.from_numpy(padded(ROWS)), torch.from_numpy(source_lengths)
        )
        step = Step.whole(torch.from_numpy(lengths), torch.from_numpy(source_lengths))
        model.decode(torch.from_numpy(ids), step, states)
    expected = ponders[-1]
    assert len(set(expected.updates.flatten().tolist())) > 1
    for index in range(4):
        outputs = decoder.step_outputs(
            (UPDATES, REMAINDERS),
            token_ids=ids[:, index : index + 1],
            logit_positions=np.arange(3),
            num_cached_tokens=np.full(3, index),
            num_new_tokens=np.ones(3),
            max_total_length=np.array(index + 1),
            source_lengths=source_lengths,
            max_source_length=np.array(5),
        )
        valid = lengths > index
        for name, values in ((UPDATES, expected.updates), (REMAINDERS, expected.remainders)):
            wanted = values[:, index].numpy()
            np.testing.assert_allclose(outputs[name][valid], wanted[valid], atol=TOLERANCE)


@pytest.mark.slow
def test_int8_bundles_keep_the_outputs(tmp_path: Path) -> None:
    source = checkpoint_of(TRANSLATOR, "vaswani")
    folder = write_bundle(
        source, tmp_path, name="adaptive", precision=Precision.INT8, accept_loss=True
    )
    assert (folder / "decode.onnx").is_file()
