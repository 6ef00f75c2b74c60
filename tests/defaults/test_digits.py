"""The shipped classifier of images: the digits that its training did not see."""

from pathlib import Path

import pytest

from export.bundle_writer import write_bundle
from export.sources import load_checkpoint
from model.bundle import Precision
from model.bundle_files import read_quality

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.INT8])
def test_the_graph_tells_digits_apart(precision: Precision, tmp_path: Path) -> None:
    checkpoint = load_checkpoint("digits")
    assert checkpoint.labels == tuple("0123456789")
    directory = write_bundle(
        checkpoint, tmp_path, precision=precision, held_out=checkpoint.held_out
    )
    quality = read_quality(directory)
    assert quality is not None
    (measured,) = quality.measurements
    assert measured.num_examples == 500
    assert measured.metrics["accuracy"] >= 0.97
