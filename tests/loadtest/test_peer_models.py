"""Models of peers from settings alone: random weights, made on the device."""

import importlib
import shutil
from pathlib import Path

import pytest

from loadtest.gpu import skeletons
from loadtest.gpu.model_sizes import CHECK_SIZES, Family, ModelSize
from loadtest.peers import random_models
from loadtest.peers.devices import has_weights

INPUTS = [[5, 6, 7], [8, 9, 10]]


def settings_of(size: ModelSize, folder: Path) -> Path:
    model, skeleton = folder / "model", folder / "skeleton"
    message = {"family": size.family, "config": dict(size.config), "out": str(model)}
    random_models.make(message)
    assert has_weights(str(model))
    skeletons.pack_settings(model, skeleton)
    shutil.rmtree(model)
    assert not has_weights(str(skeleton))
    return skeleton


@pytest.mark.parametrize(
    ("family", "engine", "task"),
    [
        (Family.DECODER, "transformers", "generate"),
        (Family.ENCODER_DECODER, "transformers_translator", "translate"),
        (Family.ENCODER, "torch_encoder", "embed"),
        (Family.ENCODER, "sentence_transformers", "embed"),
    ],
)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_peer_runs_a_model_from_its_settings(
    family: Family, engine: str, task: str, precision: str, tmp_path: Path
) -> None:
    if engine == "sentence_transformers":
        pytest.importorskip(engine)
    size = next(each for each in CHECK_SIZES if each.family == family)
    folder = settings_of(size, tmp_path)
    peer = importlib.import_module(f"loadtest.peers.{engine}_engine").Peer()
    load = {"model": str(folder), "threads": 1, "precision": precision, "task": task}
    assert peer.load(load)["version"]
    num_new = 0 if family == Family.ENCODER else 3
    run = {"task": task, "kind": "decode", "inputs": INPUTS, "max_new_tokens": num_new, "beams": 1}
    reply = peer.run(run)
    tokens = reply.get("num_tokens", sum(map(len, reply.get("arrivals", []))))
    assert tokens == 6
    if family == Family.ENCODER:
        assert len(peer.vectors({"inputs": INPUTS})["vectors"][0]) == size.config["hidden_size"]
