"""Static embeddings against the libraries' arithmetic: every call, by gRPC and HTTP."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from client.encoder_types import LongInput
from client.errors import TriuneError
from client.sync import Client
from tests import static_models
from tests.frontends.test_retrieval_models import post
from tests.serving import ServerProcess, server_process
from tests.static_models import (
    INT8,
    LONG,
    MODEL2VEC,
    PROMPTS,
    QUANTIZED,
    SENTENCES,
    SIZE,
    TEXTS,
    UNKNOWN,
    WITHOUT_TOKENS,
    reference,
    tokens_of,
)

MODELS = (MODEL2VEC, QUANTIZED, SENTENCES)
ALL_TEXTS = (*TEXTS, UNKNOWN, f"{UNKNOWN} {UNKNOWN}", WITHOUT_TOKENS)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return static_models.sources(tmp_path_factory.mktemp("static"))


@pytest.fixture(scope="module")
def server(static_bundles: Path) -> Iterator[ServerProcess]:
    with server_process(static_bundles, "--threads", "1") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.target) as client:
        yield client


@pytest.fixture(scope="module")
def http(server: ServerProcess) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.http_url, timeout=60) as http:
        yield http


def check(found: Any, folder: Path, texts: Any) -> None:
    expected = [reference(folder, text) for text in texts]
    np.testing.assert_allclose(found, expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("name", MODELS)
def test_embeds_as_its_library_does(client: Client, sources: dict[str, Path], name: str) -> None:
    outputs = client.embed(name, ALL_TEXTS).outputs
    check([output.values for output in outputs], sources[name], ALL_TEXTS)
    without = 1 if name == SENTENCES else 3  # sentence-transformers has a row for the unknown token
    is_zero = [not any(output.values) for output in outputs]
    assert is_zero == [False] * (len(ALL_TEXTS) - without) + [True] * without
    for text, output in zip(ALL_TEXTS, outputs, strict=True):
        assert client.embed(name, text).outputs[0].values == output.values


def test_int8_is_close(client: Client, sources: dict[str, Path]) -> None:
    for text, output in zip(ALL_TEXTS, client.embed(INT8, ALL_TEXTS).outputs, strict=True):
        expected = reference(sources[INT8], text)
        assert float(expected @ output.values) == pytest.approx(expected @ expected, abs=1e-3)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("text", LONG)
def test_truncates_as_its_library_does(
    client: Client, sources: dict[str, Path], name: str, text: str
) -> None:
    (output,) = client.embed(name, text, long_input=LongInput.TRUNCATE_RIGHT).outputs
    check([output.values], sources[name], [text])
    num_tokens = len(client.tokenize(name, text).outputs[0].token_ids)
    num_kept = len(tokens_of(sources[name], text))
    assert output.usage.input_tokens == num_kept
    # A word that is cut may have more tokens than the whole word.
    assert abs(num_kept + output.reading.truncated_tokens - num_tokens) <= 5


def test_truncation_follows_the_request(client: Client, sources: dict[str, Path]) -> None:
    text = f"the {UNKNOWN} internationalization of the dog"
    (output,) = client.embed(
        MODEL2VEC, text, long_input=LongInput.TRUNCATE_RIGHT, max_tokens=4
    ).outputs
    expected = reference(sources[MODEL2VEC], text, max_length=4)
    assert output.values == pytest.approx(expected, abs=2e-5)
    assert output.usage.input_tokens == 3
    (output,) = client.embed(
        MODEL2VEC, f"the cat {UNKNOWN} dog", long_input=LongInput.TRUNCATE_LEFT, max_tokens=2
    ).outputs
    check([output.values], sources[MODEL2VEC], ["dog"])


def test_long_texts_are_whole_by_default(client: Client, sources: dict[str, Path]) -> None:
    text = "a b c d e f " * 90
    (output,) = client.embed(MODEL2VEC, text).outputs
    check([output.values], sources[MODEL2VEC], ["a b c d e f"])
    assert output.reading.truncated_tokens == 0
    assert output.usage.input_tokens == 540


def test_windows_have_the_mean_of_the_whole_text(client: Client) -> None:
    text = f"{UNKNOWN} {UNKNOWN} paris capital dog {UNKNOWN} fox jumps"
    (whole,) = client.embed(QUANTIZED, text).outputs
    options: dict[str, Any] = {"long_input": LongInput.WINDOWS, "max_tokens": 2, "stride": 0}
    (windows,) = client.embed(QUANTIZED, text, **options).outputs
    assert windows.values == pytest.approx(whole.values, rel=1e-5)
    (unknown,) = client.embed(QUANTIZED, f"{UNKNOWN} " * 5, **options).outputs
    assert set(unknown.values) == {0.0}


def test_vectors_of_tokens_are_rows(client: Client, sources: dict[str, Path]) -> None:
    text = TEXTS[2]
    for name, spelled in (
        (MODEL2VEC, ["the", "dog", "and", "[SEP]", "the", "[MASK]", "dog"]),
        (SENTENCES, ["the", "dog", "[UNK]", "and", "[SEP]", "[UNK]", "the", "[MASK]", "dog"]),
    ):
        (output,) = client.embed(name, text, token_embeddings=True).outputs
        assert [token.token for token in output.tokens] == spelled
        for token in output.tokens:
            if token.token in ("the", "dog", "and"):
                assert text[token.start : token.end] == token.token
        expected = tokens_of(sources[name], text)
        np.testing.assert_allclose([token.values for token in output.tokens], expected, rtol=1e-5)


def test_streams_and_ranks(client: Client, sources: dict[str, Path]) -> None:
    (batch,) = client.embed_stream(QUANTIZED, [ALL_TEXTS])
    assert batch.outputs == client.embed(QUANTIZED, ALL_TEXTS).outputs
    query = reference(sources[QUANTIZED], TEXTS[0])
    ranked = client.rerank(QUANTIZED, TEXTS[0], ALL_TEXTS).outputs
    assert ranked[0].index == 0
    for output in ranked:
        vector = reference(sources[QUANTIZED], ALL_TEXTS[output.index])
        norms = np.linalg.norm(query) * np.linalg.norm(vector)
        cosine = float(query @ vector / norms) if norms else 0.0
        assert output.score == pytest.approx(cosine, abs=1e-5)


def test_reads_prompts(client: Client, sources: dict[str, Path]) -> None:
    (output,) = client.embed(SENTENCES, "a cat", prompt_name="query").outputs
    check([output.values], sources[SENTENCES], [PROMPTS["query"] + "a cat"])


def test_empty_texts_are_refused(client: Client) -> None:
    with pytest.raises(TriuneError, match=r"inputs\[1\]: is empty"):
        client.embed(MODEL2VEC, ["a", " "])


def test_describes_the_model(client: Client) -> None:
    info = client.get_model(MODEL2VEC)
    assert info.embedding is not None
    assert (info.embedding.size, info.embedding.is_normalized) == (SIZE, True)
    assert (info.architecture, info.max_length) == ("StaticModel", 2048)
    parity = client.get_model(INT8).parity
    assert parity is not None
    assert parity.fidelity is not None
    assert (parity.fidelity.min_cosine or 0) > 0.999


def test_http_protocols(http: httpx2.Client, sources: dict[str, Path]) -> None:
    folder = sources[MODEL2VEC]
    check(post(http, f"/{MODEL2VEC}/embed", inputs=ALL_TEXTS), folder, ALL_TEXTS)
    data = post(http, "/v1/embeddings", model=MODEL2VEC, input=ALL_TEXTS)["data"]
    check([each["embedding"] for each in data], folder, ALL_TEXTS)
    body = {"model": MODEL2VEC, "texts": ALL_TEXTS, "input_type": "search_document"}
    check(post(http, "/v2/embed", **body)["embeddings"]["float"], folder, ALL_TEXTS)
    found = post(http, f"/{MODEL2VEC}/embed", inputs=LONG, truncate=True)
    check(found, folder, LONG)
    rows = post(http, f"/{MODEL2VEC}/embed_all", inputs=TEXTS[2])[0]
    np.testing.assert_allclose(rows, tokens_of(folder, TEXTS[2]), rtol=1e-5)
    ranked = post(http, "/v1/rerank", model=MODEL2VEC, query=TEXTS[0], documents=TEXTS)["results"]
    scores = {each["index"]: each["relevance_score"] for each in ranked}
    query = reference(folder, TEXTS[0])
    expected = [query @ reference(folder, text) for text in TEXTS]
    assert [scores[index] for index in range(len(TEXTS))] == pytest.approx(expected, abs=1e-5)


def test_open_inference_protocol(http: httpx2.Client, sources: dict[str, Path]) -> None:
    shape = [len(ALL_TEXTS)]
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": shape, "data": ALL_TEXTS}
    (found,) = post(http, f"/v2/models/{QUANTIZED}/infer", inputs=[tensor])["outputs"]
    check(np.reshape(found["data"], found["shape"]), sources[QUANTIZED], ALL_TEXTS)
