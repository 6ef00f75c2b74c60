"""Bundles of models of images and of towers, in every precision, as servers run them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import CLIPModel, Dinov2Config, Dinov2ForImageClassification
from typer.testing import CliRunner

from export.__main__ import app
from export.bundle_writer import write_bundle
from export.runtime import Session
from model.bundle import Device, Manifest, Precision, Task
from model.bundle_files import read_manifest, read_parity
from server.runtime.ort.backend import OrtBackend
from tests.export.importers.support import randomise, save
from tests.families import test_clip
from tests.families.images import SMALL, case, cropping_processor, logits

MIN_COSINE = 0.999  # between both ways to run the same graph: they round activations differently


@pytest.mark.parametrize(
    ("precision", "device"),
    [
        (Precision.FP32, Device.CPU),
        (Precision.FP16, Device.CPU),
        (Precision.INT8, Device.CPU),
        (Precision.INT4, Device.CPU),
        (Precision.FP16, Device.CUDA),
    ],
)
def test_a_classifier_has_one_graph_in_every_precision(
    tmp_path: Path, precision: Precision, device: Device
) -> None:
    sizes = {name: value for name, value in SMALL.items() if name != "intermediate_size"}
    model = Dinov2ForImageClassification(Dinov2Config(**sizes | {"num_labels": 5}))
    with case(model, cropping_processor(24), logits) as given:
        bundle = write_bundle(
            given.checkpoint,
            tmp_path,
            name="images",
            precision=precision,
            device=device,
            accept_loss=True,  # random weights
        )
        manifest = read_manifest(bundle)
        assert (manifest.tasks, manifest.image) == ((Task.CLASSIFY,), given.checkpoint.image)
        assert set(manifest.graphs) == {"encode"}, "servers return no attention of images"
        assert read_parity(bundle).max_absolute_error <= 1e-4
        if device == Device.CPU:
            check_server(bundle, manifest, {"pixels": np.stack(given.images)})


def check_server(bundle: Path, manifest: Manifest, feed: dict[str, Any]) -> None:
    """The server's runtime, with its kernels, returns what the graph returns."""
    graph = manifest.graphs["encode"]
    name = graph.outputs[0].name
    loaded = OrtBackend("cpu", 1).load(bundle / graph.file, graph.disabled_optimizers)
    bound = loaded.bind({})
    actual = np.asarray(bound.run(feed)[name])
    expected = Session(bundle, graph).run(**feed)[name]
    norms = np.linalg.norm(actual, axis=-1) * np.linalg.norm(expected, axis=-1)
    assert ((actual * expected).sum(-1) / norms).min() >= MIN_COSINE


def test_both_towers_make_vectors_that_can_be_compared(tmp_path: Path) -> None:
    source = tmp_path / "clip"
    save(randomise(CLIPModel(test_clip.whole())), source)
    test_clip.end_texts(source)
    test_clip.processor_of().save_pretrained(source)
    for tower in ("image", "text"):
        out = tmp_path / "bundles" / tower
        flags = ["--tower", tower, "--precision", "int8", "--accept-loss"]
        result = CliRunner().invoke(app, [str(source), "--out", str(out), *flags])
        assert result.exit_code == 0, result.stderr
    bundles = {tower: tmp_path / "bundles" / tower / "1" for tower in ("image", "text")}
    manifests = {tower: read_manifest(bundle) for tower, bundle in bundles.items()}
    image, text = (manifests[tower].embedding for tower in ("image", "text"))
    assert image is not None
    assert text is not None
    assert (image.size, text.size) == (32, 32)
    assert image.is_normalized
    assert text.is_normalized
    assert manifests["text"].image is None
    pixels = np.random.default_rng(0).integers(0, 256, (2, 24, 24, 3)).astype(np.uint8)
    check_server(bundles["image"], manifests["image"], {"pixels": pixels})
    ids = {"token_ids": np.array([[2, 7, 3], [8, 3, 0]]), "lengths": np.array([3, 2], np.int32)}
    check_server(bundles["text"], manifests["text"], ids)


def test_a_whole_model_names_the_flag_that_it_needs(tmp_path: Path) -> None:
    source = tmp_path / "clip"
    save(CLIPModel(test_clip.whole()), source)
    result = CliRunner().invoke(app, [str(source), "--out", str(tmp_path / "bundle")])
    assert result.exit_code == 1
    assert "--tower image or --tower text" in " ".join(result.stderr.split())
