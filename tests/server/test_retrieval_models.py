"""Sparse and multi-vector models against transformers and numpy: Embed, EmbedStream and Rerank."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch

from client.errors import from_rpc_error
from protos.triune.v1 import inference_pb2 as pb
from protos.triune.v1 import inference_pb2_grpc, models_pb2, models_pb2_grpc
from tests import heads, retrieval_models
from tests.retrieval_models import (
    DOCUMENT_LENGTH,
    MULTI_VECTOR,
    QUERY_LENGTH,
    SIZE,
    SPARSE,
    UNFILLED,
    document_ids,
    document_vectors,
    max_sim,
    query_ids,
    sparse_reference,
    vectors_reference,
)
from tests.serving import server_process

TEXTS = (
    "Paris is the capital of France, isn't it?",
    "a",
    "Ángela met études 🙂 in 東京.",
    "The quick brown fox jumps over the lazy dog! " * 2,
)
QUERY, DOCUMENT = pb.INPUT_TYPE_QUERY, pb.INPUT_TYPE_DOCUMENT
LONG = "paris capital dog fox jumps over lazy quick brown the " * 6


@pytest.fixture(scope="module")
def channel(retrieval_bundles: Path) -> Iterator[grpc.Channel]:
    with (
        server_process(retrieval_bundles, "--threads", "1") as running,
        grpc.insecure_channel(running.target) as channel,
    ):
        yield channel


@pytest.fixture(scope="module")
def stub(channel: grpc.Channel) -> Any:
    return inference_pb2_grpc.InferenceServiceStub(channel)


def embed(stub: Any, model: str, texts: Any, length: Any = None, **options: Any) -> list[Any]:
    request = pb.EmbedRequest(
        model=model, inputs=texts, options=pb.EmbedOptions(**options), length=length
    )
    return list(stub.Embed(request, timeout=60).outputs)


def rerank(stub: Any, model: str, query: str, length: Any = None, **options: Any) -> list[float]:
    """The scores of :data:`TEXTS`."""
    request = pb.RerankRequest(
        model=model,
        query=query,
        documents=TEXTS,
        options=pb.RerankOptions(**options),
        length=length,
    )
    outputs = list(stub.Rerank(request, timeout=60).outputs)
    assert [x.score for x in outputs] == sorted((x.score for x in outputs), reverse=True)
    scores = {output.index: output.score for output in outputs}
    return [scores[index] for index in range(len(TEXTS))]


def rejected_field(call: Any, *args: Any, **options: Any) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        call(*args, **options)
    error = from_rpc_error(caught.value)
    assert error.code == grpc.StatusCode.INVALID_ARGUMENT
    return error.violations[0].field


def dense(sparse: Any) -> Any:
    whole = np.zeros(30_522, np.float32)
    whole[list(sparse.indices)] = sparse.values
    return whole


def token_vectors(output: Any, dtype: str = "<f4") -> Any:
    return np.frombuffer(output.tokens.packed, dtype).reshape(-1, output.tokens.size)


def largest(weights: Any, count: int) -> Any:
    """``weights`` with all but the ``count`` largest set to 0."""
    return np.where(weights >= np.sort(weights)[-count], weights, 0)


def test_sparse_weights_are_the_models(stub: Any) -> None:
    outputs = embed(stub, SPARSE, TEXTS, max_active_dims=300)
    for text, output in zip(TEXTS, outputs, strict=True):
        expected = sparse_reference(text)
        assert np.count_nonzero(expected) > 300
        np.testing.assert_allclose(dense(output.sparse), largest(expected, 300), atol=2e-5)
        indices = list(output.sparse.indices)
        assert indices == sorted(indices)
        assert list(output.sparse.tokens) == heads.tokenizer().convert_ids_to_tokens(indices)
        assert len(indices) == 300
        assert (list(output.values), output.packed, output.HasField("tokens")) == ([], b"", False)
        assert output.usage.input_tokens == len(heads.tokenizer()(text)["input_ids"])


def test_sparse_weights_do_not_depend_on_the_batch(stub: Any) -> None:
    together = embed(stub, SPARSE, TEXTS)
    assert all(len(output.sparse.values) == 1024 for output in together)
    for text, output in zip(TEXTS, together, strict=True):
        (alone,) = embed(stub, SPARSE, [text])
        assert alone.sparse == output.sparse


def test_sparse_windows_keep_the_highest_weights(stub: Any) -> None:
    windows = pb.LengthOptions(long_input=pb.LONG_INPUT_WINDOWS, max_tokens=20, stride=0)
    (output,) = embed(stub, SPARSE, [LONG], windows)
    tokenizer: Any = heads.tokenizer()
    ids = tokenizer(LONG, add_special_tokens=False)["input_ids"]
    parts = [tokenizer.decode(ids[start : start + 18]) for start in range(0, len(ids), 18)]
    assert output.reading.windows == len(parts) > 1
    whole = np.max([sparse_reference(part) for part in parts], 0)
    np.testing.assert_allclose(dense(output.sparse), largest(whole, 1024), atol=2e-5)


@pytest.mark.parametrize("name", [MULTI_VECTOR, UNFILLED])
def test_queries_have_a_vector_for_each_token(stub: Any, name: str) -> None:
    length = pb.LengthOptions(long_input=pb.LONG_INPUT_TRUNCATE_RIGHT)
    outputs = embed(stub, name, TEXTS, length, input_type=QUERY)
    for text, output in zip(TEXTS, outputs, strict=True):
        ids, num_attended = query_ids(text, name)
        assert list(output.tokens.tokens) == heads.tokenizer().convert_ids_to_tokens(ids)
        expected = vectors_reference(ids, num_attended)
        np.testing.assert_allclose(token_vectors(output), expected, atol=2e-5)
        assert output.usage.input_tokens == len(ids)
        assert list(output.values) == []


@pytest.mark.parametrize("name", [MULTI_VECTOR, UNFILLED])
@pytest.mark.parametrize("options", [{}, {"input_type": DOCUMENT}, {"token_embeddings": True}])
def test_documents_have_a_vector_for_each_kept_token(
    stub: Any, name: str, options: dict[str, Any]
) -> None:
    outputs = embed(stub, name, TEXTS, **options)
    for text, output in zip(TEXTS, outputs, strict=True):
        ids = document_ids(text, name)
        kept = [id_ for id_ in ids if id_ not in retrieval_models.spec(name).skipped]
        assert list(output.tokens.tokens) == heads.tokenizer().convert_ids_to_tokens(kept)
        np.testing.assert_allclose(token_vectors(output), document_vectors(text, name), atol=2e-5)
        assert output.usage.input_tokens == len(ids)


def test_tokens_have_offsets(stub: Any) -> None:
    text = "Paris, France"
    for input_type, extra in ((DOCUMENT, []), (QUERY, ["[MASK]"] * (QUERY_LENGTH - 6))):
        (output,) = embed(stub, MULTI_VECTOR, [text], input_type=input_type)
        tokens = output.tokens
        spans = list(zip(tokens.tokens, tokens.starts, tokens.ends, strict=True))
        marker = "[unused0]" if input_type == QUERY else "[unused1]"
        comma = [(",", 5, 6)] if input_type == QUERY else []
        expected = [("[CLS]", 0, 0), (marker, 0, 0), ("paris", 0, 5), *comma, ("france", 7, 13)]
        expected += [("[SEP]", 0, 0), *[(token, 0, 0) for token in extra]]
        assert spans == expected


def test_token_vectors_do_not_depend_on_the_batch(stub: Any) -> None:
    length = pb.LengthOptions(long_input=pb.LONG_INPUT_TRUNCATE_LEFT)
    for input_type in (QUERY, DOCUMENT):
        together = embed(stub, MULTI_VECTOR, TEXTS, length, input_type=input_type)
        for text, output in zip(TEXTS, together, strict=True):
            (alone,) = embed(stub, MULTI_VECTOR, [text], length, input_type=input_type)
            assert alone.tokens == output.tokens


def test_packs_token_vectors_in_16_bits(stub: Any) -> None:
    (output,) = embed(
        stub, MULTI_VECTOR, TEXTS[:1], encoding_format=pb.ENCODING_FORMAT_FLOAT16_BYTES
    )
    expected = document_vectors(TEXTS[0])
    np.testing.assert_allclose(token_vectors(output, "<f2"), expected, atol=1e-3)


def test_reranks_by_the_sum_of_highest_products(stub: Any) -> None:
    for name in (MULTI_VECTOR, UNFILLED):
        query = "what is paris?"
        expected = [max_sim(query, text, name) for text in TEXTS]
        assert rerank(stub, name, query) == pytest.approx(expected, abs=1e-4)


def test_reranks_by_the_product_of_sparse_vectors(stub: Any) -> None:
    query = largest(sparse_reference("search for what is paris?"), 1024)
    expected = [float(query @ largest(sparse_reference(text), 1024)) for text in TEXTS]
    assert rerank(stub, SPARSE, "what is paris?") == pytest.approx(expected, rel=1e-4)
    plain = largest(sparse_reference("what is paris?"), 1024)
    expected = [float(plain @ largest(sparse_reference(text), 1024)) for text in TEXTS]
    scores = rerank(stub, SPARSE, "what is paris?", query_prompt_name="document")
    assert scores == pytest.approx(expected, rel=1e-4)


def test_a_long_document_has_the_score_of_its_best_window(stub: Any) -> None:
    tokenizer: Any = heads.tokenizer()
    length = pb.LengthOptions(long_input=pb.LONG_INPUT_WINDOWS, stride=0)
    request = pb.RerankRequest(
        model=MULTI_VECTOR, query="a dog", documents=[LONG, TEXTS[0]], length=length
    )
    scores = {x.index: x for x in stub.Rerank(request, timeout=60).outputs}
    ids = tokenizer(LONG, add_special_tokens=False)["input_ids"]
    room = DOCUMENT_LENGTH - 3
    parts = [tokenizer.decode(ids[start : start + room]) for start in range(0, len(ids), room)]
    assert scores[0].reading.windows == len(parts) > 1
    expected = max(max_sim("a dog", part) for part in parts)
    assert scores[0].score == pytest.approx(expected, abs=1e-4)


def test_input_types_choose_prompts(stub: Any) -> None:
    typed = embed(stub, SPARSE, TEXTS[:2], input_type=QUERY)
    named = embed(stub, SPARSE, TEXTS[:2], prompt_name="query")
    untyped = embed(stub, SPARSE, TEXTS[:2])
    assert [x.sparse for x in typed] == [x.sparse for x in named]
    assert [x.sparse for x in typed] != [x.sparse for x in untyped]
    documents = embed(stub, SPARSE, TEXTS[:2], input_type=DOCUMENT)
    assert [x.sparse for x in documents] == [x.sparse for x in untyped]


def test_streams_each_kind(stub: Any) -> None:
    requests = [
        pb.EmbedStreamRequest(
            id=index,
            model=name,
            inputs=TEXTS,
            options=pb.EmbedOptions(input_type=DOCUMENT),
        )
        for index, name in enumerate((SPARSE, MULTI_VECTOR))
    ]
    for index, (name, response) in enumerate(
        zip((SPARSE, MULTI_VECTOR), stub.EmbedStream(iter(requests), timeout=60), strict=True)
    ):
        assert response.id == index
        assert list(response.outputs) == embed(stub, name, TEXTS, input_type=DOCUMENT)


def test_describes_the_vectors(channel: grpc.Channel) -> None:
    models = models_pb2_grpc.ModelServiceStub(channel)
    infos = {
        name: models.GetModel(models_pb2.GetModelRequest(model=name)).model.embedding
        for name in retrieval_models.NAMES
    }
    assert {name: info.kind for name, info in infos.items()} == {
        SPARSE: "sparse",
        MULTI_VECTOR: "multi_vector",
        UNFILLED: "multi_vector",
    }
    multi_vector = infos[MULTI_VECTOR]
    assert (multi_vector.size, multi_vector.is_normalized, multi_vector.pooling) == (SIZE, True, "")
    lengths = (multi_vector.query_length, multi_vector.document_length)
    assert lengths == (QUERY_LENGTH, DOCUMENT_LENGTH)
    assert (infos[SPARSE].size, infos[SPARSE].query_length) == (30_522, 0)


def test_errors_name_the_field(stub: Any) -> None:
    def field(model: str, length: Any = None, **options: Any) -> str:
        return rejected_field(embed, stub, model, [LONG], length, **options)

    for name in ("prompt", "prompt_name"):
        assert field(SPARSE, input_type=QUERY, **{name: "query"}) == "options.input_type"
    sparse: dict[str, Any] = {"dimensions": 8, "normalize": True, "token_embeddings": True}
    for name, value in sparse.items():
        assert field(SPARSE, **{name: value}) == f"options.{name}"
    for number in (0, 1025):
        assert field(SPARSE, max_active_dims=number) == "options.max_active_dims"
    assert field(MULTI_VECTOR, max_active_dims=8) == "options.max_active_dims"
    assert field(MULTI_VECTOR, normalize=False) == "options.normalize"
    assert field(MULTI_VECTOR, dimensions=SIZE + 1) == "options.dimensions"
    assert field(MULTI_VECTOR) == "inputs[0]"  # longer than the longest document
    windows = pb.LengthOptions(long_input=pb.LONG_INPUT_WINDOWS)
    assert field(MULTI_VECTOR, windows) == "length.long_input"
    assert rejected_field(rerank, stub, MULTI_VECTOR, LONG) == "query"
    short = pb.LengthOptions(max_tokens=1, long_input=pb.LONG_INPUT_TRUNCATE_RIGHT)
    assert field(MULTI_VECTOR, short) == "inputs[0]"


@pytest.mark.parametrize(("name", "base"), [(MULTI_VECTOR, "embedder"), (SPARSE, "filler")])
def test_attention_of_a_document(stub: Any, name: str, base: str) -> None:
    request = pb.AttendRequest(
        model=name,
        inputs=TEXTS[:1],
        attention=pb.AttentionOptions(layers=[1], heads=[2]),
    )
    (output,) = stub.Attend(request, timeout=60).outputs
    tokenizer: Any = heads.tokenizer()
    ids = document_ids(TEXTS[0]) if name == MULTI_VECTOR else tokenizer(TEXTS[0])["input_ids"]
    assert list(output.tokens) == tokenizer.convert_ids_to_tokens(ids)
    with torch.no_grad():
        model = heads.model(base)
        expected = model(torch.tensor([ids]), output_attentions=True).attentions[1][0, 2]
    weights = np.array(output.matrices[0].weights).reshape(len(ids), len(ids))
    np.testing.assert_allclose(weights, expected.numpy(), atol=1e-5)


def test_late_interaction_reads_no_pairs(stub: Any) -> None:
    pairs = pb.AttendRequest(model=MULTI_VECTOR, pairs=[pb.TextPair(text="a", text_pair="b")])
    assert rejected_field(stub.Attend, pairs, timeout=60) == "pairs"
