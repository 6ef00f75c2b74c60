"""Prompts with images in all precisions: the server's kernels against ONNX Runtime."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from export.bundle_writer import write_bundle
from export.decoding import DecodingInputs
from export.parity_sessions import open_sessions, run_sessions
from export.prompt_images import PlacedImage
from export.sources import load_checkpoint
from model.bundle import Precision
from server.engine.decoding.options import LogprobOptions
from server.models.registry import load_bundle
from server.runtime.ort.backend import OrtBackend
from tests.server.test_prompt_images import MAX_LENGTH, Lane, job, picture

TOLERANCE = 0.05  # kernels round the inputs of 8-bit products in their own way
pytestmark = pytest.mark.slow  # the models' export takes long


@pytest.mark.parametrize("precision", Precision)
def test_logprobs_are_those_of_the_graphs(
    vision_models: Path, tmp_path: Path, precision: Precision
) -> None:
    checkpoint = load_checkpoint(str(vision_models / "sources" / "llava"))
    bundle = write_bundle(checkpoint, tmp_path, precision=precision, accept_loss=True)
    model = load_bundle(bundle, OrtBackend("cpu", 1), MAX_LENGTH)
    first, second = picture(model, 1), picture(model, 2)
    jobs = [job(model, 3, first, 9), job(model, 20), job(model, 2, second, 1, first, 4)]
    lane = Lane(model, max_batched_tokens=128)
    options = LogprobOptions(top_logprobs=0)
    for id_, submitted in enumerate(jobs):
        one = replace(submitted, max_new_tokens=1, logprob_options=options)
        lane.worker.submit(id_, one)
    lane.run()
    inputs = DecodingInputs(
        prompts=[list(each.prompt) for each in jobs],
        num_steps=1,
        images=[[PlacedImage(x.start, x.pixels) for x in each.images] for each in jobs],
    )
    graphs = model.manifest.graphs
    expected = run_sessions(open_sessions(inputs, bundle, graphs), inputs, None).logits[:, 0]
    updates = {update.id: update for update in lane.updates if update.tokens}
    for id_, row in enumerate(expected):
        (token,), (scored,) = updates[id_].tokens, updates[id_].logprobs
        logprobs = row - np.logaddexp.reduce(row)
        assert scored.logprob == pytest.approx(logprobs[token], abs=TOLERANCE)
        assert logprobs.max() - logprobs[token] <= TOLERANCE
