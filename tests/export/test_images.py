"""Bundles of image models, and of models of texts with images."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from export.bundle_writer import write_bundle
from export.encoding import EncoderInputs, encode_in_graph
from export.parity_inputs import encoder_inputs
from export.runtime import Floats, Session
from model.bundle import MANIFEST_FILE, BundleError, Precision
from model.bundle_files import read_manifest, read_parity
from tests.image_models import CHECKPOINTS


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_row_does_not_depend_on_its_batch(name: str, image_bundles: Path) -> None:
    checkpoint, directory = CHECKPOINTS[name](), image_bundles / name / "1"
    manifest = read_manifest(directory)
    assert manifest.image == checkpoint.image
    assert manifest.reads_texts == (name == "vilbert")
    assert read_parity(directory).max_absolute_error < 1e-4
    session, inputs = Session(directory, manifest.graphs["encode"]), encoder_inputs(checkpoint)
    together = [outputs[0] for outputs in encode_in_graph(session, inputs)]
    alone = [_alone(session, inputs, index) for index in range(len(inputs))]
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-6)
    assert np.ptp(np.stack(together), 0).max() > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("precision", [Precision.FP16, Precision.INT8])
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_other_precisions_are_close(name: str, precision: Precision, tmp_path: Path) -> None:
    directory = write_bundle(CHECKPOINTS[name](), tmp_path, precision=precision)
    parity = read_parity(directory)
    assert parity.min_cosine > 0.99
    assert parity.fidelity is not None


def _alone(session: Session, inputs: EncoderInputs, index: int) -> Floats:
    return encode_in_graph(session, inputs.part(index, index + 1))[0][0]


def test_a_pair_needs_both_of_its_parts(image_bundles: Path) -> None:
    directory = image_bundles / "vilbert" / "1"
    session = Session(directory, read_manifest(directory).graphs["encode"])
    inputs = encoder_inputs(CHECKPOINTS["vilbert"]())
    reference = _alone(session, inputs, 0)
    first, third = inputs.part(0, 1), inputs.part(2, 3)
    other_image = EncoderInputs(first.rows, first.segments, third.images)
    other_text = EncoderInputs(third.rows, third.segments, first.images)
    for swapped in (other_image, other_text):
        assert np.abs(_alone(session, swapped, 0) - reference).max() > 1e-2


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("height", 32, "does not take"),
        ("num_channels", 1, "does not take"),
        ("num_channels", 2, "num_channels"),
        ("resize", [0, 16], "resize"),
        ("resize", [24, 10**6], "resize"),
        ("resampling", "magic", "resampling"),
    ],
)
def test_images_that_the_graph_does_not_take_are_refused(
    field: str, value: object, reason: str, image_bundle: Path
) -> None:
    path = image_bundle / MANIFEST_FILE
    assert read_manifest(image_bundle).image is not None
    manifest = json.loads(path.read_bytes())
    manifest["image"][field] = value
    path.write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match=reason):
        read_manifest(image_bundle)


@pytest.fixture
def image_bundle(image_bundles: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(image_bundles / "vit", tmp_path / "vit")) / "1"
