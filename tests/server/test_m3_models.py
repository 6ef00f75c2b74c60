"""Models with several kinds of vectors: Embed, EmbedStream, Rerank and GetModel."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from model.bundle_files import read_parity
from protos.triune.v1 import inference_pb2 as pb
from protos.triune.v1 import inference_pb2_grpc, models_pb2, models_pb2_grpc
from tests import heads
from tests.m3_models import M3, M3_INT8, NAMES, SIZE, TOKEN_SIZE, ids_of, reference, scores
from tests.server.test_retrieval_models import TEXTS as ALL_TEXTS
from tests.server.test_retrieval_models import dense, embed, rejected_field, rerank, token_vectors
from tests.serving import server_process

TEXTS = (*ALL_TEXTS, "the dog [UNK] and the dog and the dog")
DENSE, SPARSE, VECTORS = (
    pb.EMBEDDING_KIND_DENSE,
    pb.EMBEDDING_KIND_SPARSE,
    pb.EMBEDDING_KIND_MULTI_VECTOR,
)
ALL = (DENSE, SPARSE, VECTORS)
LONG = "paris capital dog fox jumps over lazy quick brown the " * 6


@pytest.fixture(scope="module")
def channel(m3_bundles: Path) -> Iterator[grpc.Channel]:
    with (
        server_process(m3_bundles, "--threads", "1") as running,
        grpc.insecure_channel(running.target) as channel,
    ):
        yield channel


@pytest.fixture(scope="module")
def stub(channel: grpc.Channel) -> Any:
    return inference_pb2_grpc.InferenceServiceStub(channel)


def parts(output: Any) -> tuple[bool, bool, bool]:
    return bool(output.values), output.HasField("sparse"), output.HasField("tokens")


def check(output: Any, text: str, kinds: Any) -> None:
    expected = reference(text)
    assert parts(output) == tuple(kind in kinds for kind in ALL)
    assert output.usage.input_tokens == len(ids_of(text))
    if DENSE in kinds:
        np.testing.assert_allclose(output.values, expected.dense, atol=2e-5)
    if SPARSE in kinds:
        np.testing.assert_allclose(dense(output.sparse), expected.weights, atol=2e-5)
        indices = list(output.sparse.indices)
        assert indices == sorted(set(indices))
        assert list(output.sparse.tokens) == heads.tokenizer().convert_ids_to_tokens(indices)
        assert all(value > 0 for value in output.sparse.values)
    if VECTORS in kinds:
        np.testing.assert_allclose(token_vectors(output), expected.vectors, atol=2e-5)
        tokens = heads.tokenizer().convert_ids_to_tokens(ids_of(text)[1:])
        assert list(output.tokens.tokens) == tokens


@pytest.mark.parametrize(
    "kinds", [(), (DENSE,), (SPARSE,), (VECTORS,), (VECTORS, DENSE), (SPARSE, DENSE), ALL]
)
def test_returns_the_kinds_that_are_asked_for(stub: Any, kinds: Any) -> None:
    for text, output in zip(TEXTS, embed(stub, M3, TEXTS, vectors=kinds), strict=True):
        check(output, text, kinds or (DENSE,))


@pytest.mark.parametrize("name", NAMES)
def test_kinds_do_not_depend_on_the_batch_or_on_each_other(stub: Any, name: str) -> None:
    together = embed(stub, name, TEXTS, vectors=ALL)
    for text, output in zip(TEXTS, together, strict=True):
        (alone,) = embed(stub, name, [text], vectors=ALL)
        assert alone == output
        for kind, field in ((DENSE, "values"), (SPARSE, "sparse"), (VECTORS, "tokens")):
            (one,) = embed(stub, name, [text], vectors=[kind])
            assert getattr(one, field) == getattr(output, field)


def test_int8_is_near_fp32(stub: Any) -> None:
    for text, output in zip(TEXTS, embed(stub, M3_INT8, TEXTS, vectors=ALL), strict=True):
        expected, weights = reference(text), dense(output.sparse)
        assert float(np.dot(output.values, expected.dense)) > 0.99
        product = float(weights @ expected.weights)
        norms = float(np.linalg.norm(weights) * np.linalg.norm(expected.weights))
        assert product == pytest.approx(norms, rel=0.02)
        assert (token_vectors(output) * expected.vectors).sum(1).min() > 0.97


def test_streams_change_kinds(stub: Any) -> None:
    def requests() -> Iterator[pb.EmbedStreamRequest]:
        options = pb.EmbedOptions(vectors=[SPARSE, VECTORS])
        yield pb.EmbedStreamRequest(id=1, model=M3, inputs=TEXTS, options=options)
        yield pb.EmbedStreamRequest(id=2, inputs=TEXTS)
        yield pb.EmbedStreamRequest(id=3, inputs=TEXTS, options=pb.EmbedOptions())

    responses = list(stub.EmbedStream(requests(), timeout=60))
    assert [response.id for response in responses] == [1, 2, 3]
    for response, kinds in zip(
        responses, [(SPARSE, VECTORS), (SPARSE, VECTORS), (DENSE,)], strict=True
    ):
        for text, output in zip(TEXTS, response.outputs, strict=True):
            check(output, text, kinds)


def test_windows_of_dense_and_sparse_vectors(stub: Any) -> None:
    windows = pb.LengthOptions(long_input=pb.LONG_INPUT_WINDOWS, max_tokens=20, stride=0)
    (output,) = embed(stub, M3, [LONG], windows, vectors=[DENSE, SPARSE])
    tokenizer: Any = heads.tokenizer()
    ids = tokenizer(LONG, add_special_tokens=False)["input_ids"]
    texts = [tokenizer.decode(ids[start : start + 18]) for start in range(0, len(ids), 18)]
    assert output.reading.windows == len(texts) > 1
    whole = np.max([reference(text).weights for text in texts], 0)
    np.testing.assert_allclose(dense(output.sparse), whole, atol=2e-5)
    assert np.linalg.norm(output.values) == pytest.approx(1, abs=1e-5)


def test_options_of_kinds(stub: Any) -> None:
    (output,) = embed(stub, M3, TEXTS[:1], vectors=ALL, max_active_dims=2, dimensions=8)
    expected = reference(TEXTS[0])
    weights = expected.weights
    assert list(output.sparse.indices) == sorted(np.argsort(-weights)[:2].tolist())
    for found, vectors in (
        (output.values, expected.dense[:8]),
        (token_vectors(output), expected.vectors[:, :8]),
    ):
        units = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
        np.testing.assert_allclose(found, units, atol=2e-5)
    (plain,) = embed(stub, M3, TEXTS[:1], token_embeddings=True)
    assert plain.tokens.size == SIZE
    assert len(plain.tokens.tokens) == len(ids_of(TEXTS[0]))
    packed = pb.ENCODING_FORMAT_FLOAT16_BYTES
    (half,) = embed(stub, M3, TEXTS[:1], vectors=ALL, encoding_format=packed)
    assert half.encoding_format == packed
    np.testing.assert_allclose(np.frombuffer(half.packed, "<f2"), expected.dense, atol=1e-3)
    np.testing.assert_allclose(token_vectors(half, "<f2"), expected.vectors, atol=1e-3)


NAMED = {DENSE: "dense", SPARSE: "sparse", VECTORS: "multi_vector"}


@pytest.mark.parametrize(
    ("kinds", "weights"),
    [
        ((), ()),
        ((SPARSE,), ()),
        ((VECTORS,), (3,)),
        ((DENSE, SPARSE), ()),
        (ALL, (0.4, 0.2, 0.4)),
        (ALL, (1, 0, 2)),
    ],
)
def test_reranks_by_the_weighted_mean_of_kinds(stub: Any, kinds: Any, weights: Any) -> None:
    found = rerank(stub, M3, "what is the dog?", vectors=kinds, weights=weights)
    used = dict(zip(kinds or (DENSE,), weights or (1,) * 3, strict=False))
    for text, score in zip(ALL_TEXTS, found, strict=True):
        by_kind = scores("what is the dog?", text)
        expected = sum(used[kind] * by_kind[NAMED[kind]] for kind in used) / sum(used.values())
        assert score == pytest.approx(expected, abs=1e-4)


def test_a_long_document_has_the_score_of_its_best_window(stub: Any) -> None:
    length = pb.LengthOptions(long_input=pb.LONG_INPUT_WINDOWS, max_tokens=20, stride=0)
    request = pb.RerankRequest(
        model=M3, query="a dog", documents=[LONG], length=length,
        options=pb.RerankOptions(vectors=ALL),
    )  # fmt: skip
    (output,) = stub.Rerank(request, timeout=60).outputs
    tokenizer: Any = heads.tokenizer()
    ids = tokenizer(LONG, add_special_tokens=False)["input_ids"]
    texts = [tokenizer.decode(ids[start : start + 18]) for start in range(0, len(ids), 18)]
    best = max(sum(scores("a dog", text).values()) / 3 for text in texts)
    assert output.score == pytest.approx(best, abs=1e-4)


def test_describes_its_kinds(channel: grpc.Channel) -> None:
    models = models_pb2_grpc.ModelServiceStub(channel)
    info = models.GetModel(models_pb2.GetModelRequest(model=M3)).model.embedding
    assert (info.kind, list(info.kinds)) == ("dense", ["dense", "sparse", "multi_vector"])
    assert (info.size, info.token_vector_size, info.pooling) == (SIZE, TOKEN_SIZE, "cls")
    assert (info.query_length, info.document_length) == (0, 0)


def test_describes_the_fidelity_of_each_kind(channel: grpc.Channel, m3_bundles: Path) -> None:
    models = models_pb2_grpc.ModelServiceStub(channel)
    parities = {
        name: models.GetModel(models_pb2.GetModelRequest(model=name)).model.parity for name in NAMES
    }
    assert not parities[M3].HasField("fidelity")
    found = parities[M3_INT8].fidelity
    measured = read_parity(m3_bundles / M3_INT8 / "1").fidelity
    assert measured is not None
    assert measured.other_vectors
    assert found.other_vectors.keys() == {"sparse", "multi_vector"}
    for kind, figures in measured.other_vectors.items():
        for name in ("min_cosine", "mean_cosine", "retrieval_agreement"):
            assert getattr(found.other_vectors[kind], name) == getattr(figures, name) > 0.9


def test_errors_name_the_field(stub: Any) -> None:
    def field(length: Any = None, **options: Any) -> str:
        return rejected_field(embed, stub, M3, [LONG], length, **options)

    assert field(vectors=[DENSE, DENSE]) == "options.vectors[1]"
    assert field(vectors=[0]) == "options.vectors[0]"
    assert field(vectors=[9]) == "options.vectors[0]"
    assert field(vectors=[DENSE] * 4) == "options.vectors"
    assert field(max_active_dims=3) == "options.max_active_dims"
    assert field(vectors=[VECTORS], max_active_dims=3) == "options.max_active_dims"
    assert field(vectors=[SPARSE], dimensions=3) == "options.dimensions"
    assert field(vectors=[VECTORS], dimensions=TOKEN_SIZE + 1) == "options.dimensions"
    assert field(vectors=[VECTORS], normalize=False) == "options.normalize"
    for kinds in ([SPARSE], ALL):
        assert field(vectors=kinds, token_embeddings=True) == "options.token_embeddings"
    windows = pb.LengthOptions(long_input=pb.LONG_INPUT_WINDOWS)
    assert field(windows, vectors=[VECTORS]) == "length.long_input"
    for weights in ([1], [1, -1], [0, 0], [1, float("nan")]):
        options: dict[str, Any] = {"vectors": [DENSE, SPARSE], "weights": weights}
        found = rejected_field(rerank, stub, M3, "a", **options)
        assert found.partition("[")[0] == "options.weights"
    assert rejected_field(rerank, stub, M3, "a", weights=[1]) == "options.weights"
    assert rejected_field(rerank, stub, M3, "a", vectors=[SPARSE, SPARSE]) == "options.vectors[1]"


def test_only_a_texts_own_tokens_count_as_weights_of_a_reply(stub: Any) -> None:
    # With 1,024 weights for each text, the reply would be too large.
    assert len(embed(stub, M3, ["dog"] * 4096, vectors=[SPARSE])) == 4096
