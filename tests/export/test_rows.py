"""A sequence's results do not depend on its batch, in any CPU precision."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from export.apply_scheme import apply_scheme
from export.decoding import DecodingInputs, decode_in_graph, prefill_source
from export.encoding import EncoderInputs, encode_in_graph
from export.precision_schemes import scheme_for
from export.runtime import DecodeSession, Floats, Session
from export.signatures import Signatures
from model.bundle import Device, Precision
from tests.architectures import ARCHITECTURES, VOCABULARY_SIZE
from tests.export.exported import Exported

PRECISIONS = (Precision.FP32, Precision.FP16, Precision.INT8, Precision.INT4)
# For logits and embeddings of magnitude 1. fp32 sums depend on how a matrix is tiled, which can
# move an activation to the next of 127 quantization steps.
TOLERANCES = {
    Precision.FP32: 2e-5,
    Precision.FP16: 2e-5,
    Precision.INT8: 0.03,
    Precision.INT4: 0.03,
}
NUM_STEPS = 3
CAPACITY, SOURCE_CAPACITY, NUM_SLOTS = 24, 16, 5

ROWS = st.lists(
    st.lists(st.integers(2, VOCABULARY_SIZE - 1), min_size=1, max_size=12),
    min_size=2,
    max_size=NUM_SLOTS,
)


class Runner:
    """The graphs of one precision. ``run`` returns logits or embeddings per row."""

    def __init__(self, name: str, directory: Path, graphs: Signatures) -> None:
        self.config = ARCHITECTURES[name]
        self.encoder = Session(directory, graphs["encode"]) if "encode" in graphs else None
        self.decoder = None
        if "decode" in graphs:
            self.decoder = DecodeSession(
                directory,
                graphs["decode"],
                num_slots=NUM_SLOTS,
                capacity=CAPACITY,
                source_capacity=SOURCE_CAPACITY,
            )

    def run(self, rows: list[list[int]]) -> list[Floats]:
        if self.decoder is None:
            assert self.encoder is not None
            encoder_inputs = EncoderInputs.of(self.config, rows)
            return [outputs[0] for outputs in encode_in_graph(self.encoder, encoder_inputs)]
        self.decoder.clear()
        prompts, sources = rows, None
        if self.encoder is not None:
            prompts, sources = [[0, *row[:2]] for row in rows], rows
            prefill_source(self.encoder, self.decoder, sources)
        decoding_inputs = DecodingInputs(prompts=prompts, num_steps=NUM_STEPS, sources=sources)
        # Force the same tokens, whatever a row would generate.
        tokens = np.full((len(rows), NUM_STEPS), 5)
        return list(decode_in_graph(self.decoder, decoding_inputs, tokens).logits)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_results_do_not_depend_on_the_batch(
    exported: Exported, tmp_path: Path, precision: Precision
) -> None:
    directory = tmp_path / "graphs"
    shutil.copytree(exported.directory, directory)
    scheme = scheme_for(precision, Device.CPU, ARCHITECTURES[exported.name].kind)
    graphs = apply_scheme(ARCHITECTURES[exported.name], scheme, exported.graphs, directory)
    runner = Runner(exported.name, directory, graphs)

    @settings(max_examples=12, database=None, derandomize=True)
    @given(ROWS)
    def check(rows: list[list[int]]) -> None:
        batched = runner.run(rows)
        for row, expected in zip(rows, batched, strict=True):
            (alone,) = runner.run([row])
            np.testing.assert_allclose(alone, expected, rtol=0, atol=TOLERANCES[precision])
        # Reversing the batch changes nothing either.
        for expected, actual in zip(batched, reversed(runner.run(rows[::-1])), strict=True):
            np.testing.assert_allclose(actual, expected, rtol=0, atol=TOLERANCES[precision])

    check()
