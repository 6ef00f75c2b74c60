"""Kinds of models that must load on CUDA: of images, of speech, recurrent, with biases."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


@contextmanager
def _vit(folder: Path) -> Iterator[Checkpoint]:
    del folder
    yield image_models.CHECKPOINTS["vit"]()


@contextmanager
def _vilbert(folder: Path) -> Iterator[Checkpoint]:
    del folder
    yield image_models.CHECKPOINTS["vilbert"]()


@contextmanager
def _whisper(folder: Path) -> Iterator[Checkpoint]:
    yield speech_models.checkpoint(folder)


@contextmanager
def _gru(folder: Path) -> Iterator[Checkpoint]:
    del folder
    yield tiny_recurrent.recurrent_dates()


@contextmanager
def _t5(folder: Path) -> Iterator[Checkpoint]:
    del folder
    with imported(T5ForConditionalGeneration(T5Config(**test_t5.SMALL))) as checkpoint:
        yield checkpoint


@contextmanager
def _mpt(folder: Path) -> Iterator[Checkpoint]:
    del folder
    with imported(MptForCausalLM(MptConfig(**test_mpt.SMALL))) as checkpoint:
        yield checkpoint


@contextmanager
def _deberta(folder: Path) -> Iterator[Checkpoint]:
    del folder
    config = DebertaV2Config(**encoders.SMALL | test_deberta.V3)
    with imported(DebertaV2Model(config)) as checkpoint:
        yield checkpoint


Serve = Callable[..., Reply]


@pytest.fixture
def serve(run_probe: Probe, tmp_path: Path) -> Serve:
    """Exports a model in fp16 for a GPU, and serves it."""

    def run(make: Callable[[Path], Iterator[Checkpoint]], *jobs: str) -> Reply:
        with make(tmp_path) as checkpoint:  # type: ignore[attr-defined]
            bundle = write_bundle(
                *(checkpoint, tmp_path / "bundles"),
                precision=Precision.FP16,
                device=Device.CUDA,
                accept_loss=True,
            )
        return run_probe(Request(str(bundle), {"max_length": 32}, jobs=jobs))

    return run


@pytest.mark.parametrize("make", [_vit, _vilbert])
def test_images(serve: Serve, make: Callable[[Path], Iterator[Checkpoint]]) -> None:
    """Pixels are bytes, which the first product makes 16-bit floats."""
    assert_clean(serve(make, "greedy"))


@pytest.mark.parametrize("make", [_whisper, _gru, _t5, _mpt])
def test_generation(serve: Serve, make: Callable[[Path], Iterator[Checkpoint]]) -> None:
    """Speech begins in fp32. T5's and MPT's biases span positions that the host counts."""
    reply = serve(make, "greedy", "beams")
    assert_clean(reply)
    assert len(captures(reply.prepared)) == reply.num_graphs > 0


def test_what_copies_from_the_host_is_not_recorded(serve: Serve) -> None:
    """DeBERTa's distances are computed on the host."""
    reply = serve(_deberta, "greedy")
    assert reply.failures == {"greedy": []}
    assert reply.num_graphs == 0
    assert reply.warnings == [
        "runs are not recorded, as one may not be replayed: the run copies from the host"
    ]
