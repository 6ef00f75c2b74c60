"""A text's vectors and logits are the same bits, whatever shares its batch and its padding."""

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from model.bundle import ATTENDED_LENGTHS, EmbeddingKind
from model.bundle_files import read_manifest
from server.engine.encoder_batch import BatchLimits
from server.engine.encoder_runner import TOKEN_OUTPUTS, EncoderRunner
from server.engine.encoder_worker import EncoderWorker
from server.engine.observer import Unobserved
from server.engine.requests.job import EncodingJob
from server.engine.requests.update import JobUpdate
from server.runtime.kernels.library import Kernels, supported_kernels
from server.runtime.ort.backend import OrtBackend
from tests import heads, m3_models, retrieval_models
from tests.faults.record import record
from tests.literature import LITERATURE

NUM_BATCHES, MAX_TEXTS = 12, 8

pytestmark = pytest.mark.skipif(
    Kernels.TOKEN_SUM not in supported_kernels(), reason="this CPU cannot run the kernels"
)


class Encoder:
    """An encoder bundle on backends of one and of two threads."""

    def __init__(self, directory: Path) -> None:
        manifest = read_manifest(directory)
        self._spec = manifest.graphs["encode"]
        self._graphs = [
            OrtBackend("cpu", num_threads).load(
                directory / self._spec.file, self._spec.disabled_optimizers
            )
            for num_threads in (1, 2)
        ]
        self._vocabulary_size = manifest.dimensions.vocabulary_size
        self._max_length = min(manifest.dimensions.max_positions, 200)
        names = (tensor.name for tensor in self._spec.outputs)
        self._token_outputs = [name for name in names if name in TOKEN_OUTPUTS]
        inputs = {tensor.name for tensor in self._spec.inputs}
        self._fills_masks = "logit_positions" in inputs
        self._has_unattended = ATTENDED_LENGTHS in inputs
        self._is_sparse = manifest.embedding_kind == EmbeddingKind.SPARSE

    def job(self, rng: random.Random, max_length: int) -> EncodingJob:
        length = rng.randrange(1, min(max_length, self._max_length) + 1)
        ids = tuple(rng.randrange(self._vocabulary_size) for _ in range(length))
        positions = tuple(sorted(rng.sample(range(length), min(length, 2))))
        return EncodingJob(
            ids,
            num_attended=rng.randrange(1, length + 1) if self._has_unattended else None,
            logit_positions=positions if self._fills_masks else (),
            token_outputs=tuple(x for x in self._token_outputs if rng.random() < 0.5),
        )

    def run(self, jobs: Sequence[EncodingJob], num_threads: int) -> list[JobUpdate]:
        """Runs the texts in one batch."""
        limits = BatchLimits(1 << 20, max_padding=float("inf"))
        graph = self._graphs[num_threads - 1]
        runner = EncoderRunner(self._spec, graph, is_sparse=self._is_sparse)
        worker = EncoderWorker("e", runner, limits, lambda: 0.0, Unobserved())
        for id_, job in enumerate(jobs):
            worker.submit(id_, job)
        updates = worker.step()
        assert not worker.has_work, "all run in one batch"
        return sorted(updates, key=lambda update: update.id)


def assert_invariant(encoder: Encoder, name: str) -> None:
    """Compares random batches with their texts alone; records it as a fault row of ``name``."""
    rng, num_texts = random.Random(15), 0
    for _ in range(NUM_BATCHES):
        max_length = rng.choice((3, 24, 200))
        jobs = [encoder.job(rng, max_length) for _ in range(rng.randrange(2, MAX_TEXTS + 1))]
        for job, together in zip(jobs, encoder.run(jobs, num_threads=2), strict=True):
            (single,) = encoder.run([job], num_threads=1)
            ours, alone = together.encoded, single.encoded
            assert ours is not None
            assert alone is not None
            np.testing.assert_array_equal(ours.vector, alone.vector, strict=True)
            np.testing.assert_array_equal(ours.indices, alone.indices)
            assert tuple(ours.of_tokens) == job.token_outputs
            for name_, rows in alone.of_tokens.items():
                np.testing.assert_array_equal(ours.of_tokens[name_], rows, strict=True)
            num_texts += 1
    record(
        15,
        f"texts of random lengths in one batch of an encoder, {name}",
        "the same bits, whatever shares the batch, at any padding and number of threads",
        texts=num_texts,
        identical=num_texts,
    )


@pytest.mark.usefixtures("register_bits")
@pytest.mark.parametrize("name", heads.NAMES)
def test_batch_does_not_change_results(head_bundles: Path, name: str) -> None:
    assert_invariant(Encoder(head_bundles / name / "1"), f"{name} in fp32")


@pytest.mark.usefixtures("register_bits")
@pytest.mark.parametrize("name", retrieval_models.NAMES)
def test_batch_does_not_change_retrieval(retrieval_bundles: Path, name: str) -> None:
    assert_invariant(Encoder(retrieval_bundles / name / "1"), f"{name} in fp32")


@pytest.mark.usefixtures("register_bits")
@pytest.mark.parametrize("name", m3_models.NAMES)
def test_batch_does_not_change_several_kinds_of_vectors(m3_bundles: Path, name: str) -> None:
    precision = "int8" if name == m3_models.M3_INT8 else "fp32"
    assert_invariant(Encoder(m3_bundles / name / "1"), f"M3-Embedding in {precision}")


@pytest.mark.slow
@pytest.mark.usefixtures("register_bits")
@pytest.mark.parametrize("name", LITERATURE)
def test_batch_does_not_change_literature(literature_bundles: Path, name: str) -> None:
    assert_invariant(Encoder(literature_bundles / name / "1"), f"{name} in fp32")


@pytest.mark.slow
@pytest.mark.usefixtures("register_bits")
def test_batch_does_not_change_int8_embeddings(int8_bundles: Path) -> None:
    (directory,) = (int8_bundles / "minilm").glob("[0-9]*")
    assert_invariant(Encoder(directory), "minilm in int8")
