"""The largest weights of a sparse vector, against a stable sort; and what sparse models need."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.bundle import Device
from model.bundle_files import read_manifest
from server.config import ServerConfig
from server.engine.encoder_batch import BatchLimits, form_batch
from server.engine.sparse_vectors import largest_weights
from server.models.memory_budget import max_padded_tokens, plan_memory
from tests.retrieval_models import MULTI_VECTOR, SPARSE

# Few different weights: most are equal to others.
WEIGHTS = st.lists(st.sampled_from((0.0, 0.5, 1.0, 1.5, 2.0)), min_size=1, max_size=60)


@given(WEIGHTS, st.integers(1, 70))
def test_the_largest_weights_come_first_then_lower_ids(values: list[float], count: int) -> None:
    weights = np.array(values, np.float32)
    order = sorted(range(len(values)), key=lambda id_: (-values[id_], id_))
    expected = sorted(id_ for id_ in order[:count] if values[id_] > 0)
    found = largest_weights(weights, count)
    assert found.indices.tolist() == expected
    assert found.values.tolist() == [values[id_] for id_ in expected]
    assert found.values.base is None, "the next run overwrites the graph's output"


def test_batches_of_sparse_models_bound_their_logits(retrieval_bundles: Path) -> None:
    config = ServerConfig(bundles=retrieval_bundles, max_padded_tokens=1 << 14)
    manifest = read_manifest(retrieval_bundles / SPARSE / "1")
    limit = max_padded_tokens(manifest, config)
    assert 4 * 30_522 * limit <= 64 << 20 < 4 * 30_522 * (limit + 1)
    dense = read_manifest(retrieval_bundles / MULTI_VECTOR / "1")
    assert max_padded_tokens(dense, config) == 1 << 14
    # A longer text runs alone.
    assert form_batch([limit + 1, 8, limit + 1], BatchLimits(limit), leaves_half=False) == [0]


@pytest.mark.parametrize("max_length", [16, 4096])
def test_working_memory_of_sparse_models_has_their_logits(
    retrieval_bundles: Path, max_length: int
) -> None:
    manifest = read_manifest(retrieval_bundles / SPARSE / "1")
    assert manifest.device == Device.CPU
    config = ServerConfig(bundles=retrieval_bundles, num_lanes=3, max_padded_tokens=256)
    plan = plan_memory(manifest, max_length, max_length, config, 1000, None)
    dense = msgspec.structs.replace(manifest, embedding=None)
    others = plan_memory(dense, max_length, max_length, config, 1000, None)
    logits = 3 * 2 * 4 * max(256, max_length) * 30_522
    assert plan.working_bytes >= others.working_bytes + logits
