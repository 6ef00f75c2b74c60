"""Bundles of models that write texts about images, in every precision."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.bundle_writer import write_bundle
from export.errors import SourceError, UnsupportedError
from export.fidelity.subject import Subject
from export.image_sources import ImageSource
from export.quality.choice import choose_held_out
from export.quality.images import images_of
from export.runtime import Session
from export.sample_images import sample_images
from model.bundle import AttentionKind, Device, KvCache, Precision, Task
from model.bundle_files import read_manifest, read_parity
from tests.caption_models import CAPTIONER, MAX_LENGTH, START, checkpoint
from tests.image_models import IMAGE


def test_what_a_bundle_says(caption_bundles: Path) -> None:
    directory = caption_bundles / "captioner" / "1"
    manifest, parity = read_manifest(directory), read_parity(directory)
    assert (manifest.tasks, manifest.image) == ((Task.GENERATE,), IMAGE)
    assert not manifest.reads_texts
    assert set(manifest.graphs) == {"encode", "decode", "attend"}, "no attention of images alone"
    shape = manifest.graphs["attend"].output(AttentionKind.CROSS).shape
    assert shape == ("batch", 2, 4, "length", "source_length")
    assert manifest.dimensions.max_positions == MAX_LENGTH
    assert parity.max_absolute_error < 1e-4
    assert parity.greedy_tokens_equal == parity.greedy_tokens_compared > 100


def test_an_image_does_not_depend_on_its_batch(caption_bundles: Path) -> None:
    directory = caption_bundles / "captioner" / "1"
    session = Session(directory, read_manifest(directory).graphs["encode"])
    images = sample_images(IMAGE, 3, seed=0)
    together = session.run(pixels=np.stack(images))
    for index, image in enumerate(images):
        for name, values in session.run(pixels=image[None]).items():
            np.testing.assert_allclose(values[0], together[name][index], rtol=0, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "device"),
    [
        (Precision.FP16, Device.CPU),
        (Precision.BF16, Device.CPU),
        (Precision.INT8, Device.CPU),
        (Precision.INT4, Device.CPU),
        (Precision.FP16, Device.CUDA),
    ],
)
def test_other_precisions_are_close(precision: Precision, device: Device, tmp_path: Path) -> None:
    directory = write_bundle(
        checkpoint(), tmp_path, precision=precision, device=device, accept_loss=True
    )
    parity = read_parity(directory)
    assert parity.min_cosine > (0.9 if precision == Precision.INT4 else 0.99)
    assert parity.fidelity is not None
    assert parity.perplexity is not None


def test_the_measured_sources_are_images() -> None:
    sources = Subject.of(checkpoint()).sources()
    assert len(sources) == 8
    for source in sources:
        assert isinstance(source, ImageSource)
        assert len(source) == CAPTIONER.patches.num_tokens if CAPTIONER.patches else False
        assert source.target[0] == START


def test_an_int8_cache_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="texts about images"):
        write_bundle(checkpoint(), tmp_path, kv_cache=KvCache.INT8)


def test_texts_alone_measure_nothing(tmp_path: Path) -> None:
    file, of_images = tmp_path / "texts.jsonl", checkpoint()
    file.write_text('{"text": "A", "prompt": "B"}\n')
    found: Any = choose_held_out(of_images, str(file))
    with pytest.raises(SourceError, match="held-out example 1: the model needs a text with an im"):
        images_of(found.examples, of_images.image, has_texts=True)
