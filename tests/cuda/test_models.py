"""Kinds of models that must load on CUDA: of images, of speech, recurrent, with biases."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
from transformers import (
    DebertaV2Config,
    DebertaV2Model,
    MptConfig,
    MptForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from export.bundle_writer import write_bundle
from export.checkpoint import Checkpoint
from model.bundle import Device, Precision
from tests import image_models, speech_models, tiny_recurrent
from tests.cuda.conftest import Probe
from tests.cuda.probe import Reply, Request
from tests.cuda.test_dry_runs import assert_clean, captures
from tests.families import encoders, test_deberta, test_mpt, test_t5
from tests.families.harness import imported

pytestmark = pytest.mark.slow


Open = Callable[[Path], AbstractContextManager[Checkpoint]]
"""Makes a model, with a folder for its files."""

IMAGES: dict[str, Open] = {
    "vit": lambda _: nullcontext(image_models.CHECKPOINTS["vit"]()),
    "vilbert": lambda _: nullcontext(image_models.CHECKPOINTS["vilbert"]()),
}
GENERATION: dict[str, Open] = {
    "whisper": lambda folder: nullcontext(speech_models.checkpoint(folder)),
    "gru": lambda _: nullcontext(tiny_recurrent.recurrent_dates()),
    "t5": lambda _: imported(T5ForConditionalGeneration(T5Config(**test_t5.SMALL))),
    "mpt": lambda _: imported(MptForCausalLM(MptConfig(**test_mpt.SMALL))),
}


def deberta(_: Path) -> AbstractContextManager[Checkpoint]:
    return imported(DebertaV2Model(DebertaV2Config(**encoders.SMALL | test_deberta.V3)))


Serve = Callable[..., Reply]


@pytest.fixture
def serve(run_probe: Probe, tmp_path: Path) -> Serve:
    """Exports a model in fp16 for a GPU, and serves it."""

    def run(make: Open, *jobs: str) -> Reply:
        with make(tmp_path) as checkpoint:
            bundle = write_bundle(
                *(checkpoint, tmp_path / "bundles"),
                precision=Precision.FP16,
                device=Device.CUDA,
                accept_loss=True,
            )
        return run_probe(Request(str(bundle), {"max_length": 32}, jobs=jobs))

    return run


@pytest.mark.parametrize("name", IMAGES)
def test_images(serve: Serve, name: str) -> None:
    """Pixels are bytes, which the first product makes 16-bit floats."""
    assert_clean(serve(IMAGES[name], "greedy"))


@pytest.mark.parametrize("name", GENERATION)
def test_generation(serve: Serve, name: str) -> None:
    """Speech begins in fp32. T5's and MPT's biases span positions that the host counts."""
    reply = serve(GENERATION[name], "greedy", "beams")
    assert_clean(reply)
    assert len(captures(reply.prepared)) == reply.num_graphs > 0


def test_what_copies_from_the_host_is_not_recorded(serve: Serve) -> None:
    """DeBERTa's distances are computed on the host."""
    reply = serve(deberta, "greedy")
    assert reply.failures == {"greedy": []}
    assert reply.num_graphs == 0
    assert reply.warnings == [
        "runs are not recorded, as one may not be replayed: the run copies from the host"
    ]
