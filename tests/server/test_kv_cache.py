"""Serving with an int8 KV cache: same accuracy in a quarter of the memory."""

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from client.sync import Client
from tests import tiny
from tests.serving import server_process

NUM_CLIENTS = 8
MODELS, DATES = ("tiny-decoder", "decoder-cache8"), "dates-cache8"


@pytest.fixture(scope="module")
def client(
    tiny_bundles: Path, compact_bundles: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Client]:
    bundles = tmp_path_factory.mktemp("bundles")
    shutil.copytree(tiny_bundles / MODELS[0], bundles / MODELS[0])
    for name in (MODELS[1], DATES):
        shutil.copytree(compact_bundles / name, bundles / name)
    with server_process(bundles) as running, Client(running.target) as client:
        yield client


def test_reports_cache_bytes_per_token(client: Client) -> None:
    float_model, int8_model = map(client.get_model, MODELS)
    assert (float_model.kv_cache, int8_model.kv_cache) == ("float", "int8")
    assert float_model.cache_bytes_per_token == 4 * int8_model.cache_bytes_per_token > 0
    assert int8_model.parity is not None
    assert int8_model.parity.float_cache_perplexity > 0


def test_reports_fidelity_to_fp32(client: Client) -> None:
    float_model, int8_model, dates = (client.get_model(name).parity for name in (*MODELS, DATES))
    assert float_model is not None
    assert float_model.fidelity is None
    assert int8_model is not None
    found = int8_model.fidelity
    assert found is not None
    assert (found.num_texts, found.num_tokens > 0) == (8, True)
    assert 0.8 < (found.top1_agreement or 0) <= 1  # of 39 tokens
    assert 0 < (found.rms_logprob_difference or 0) < 0.4
    assert (found.chrf, found.mean_cosine, found.exceeded_limits) == (None, None, ())
    assert dates is not None
    assert dates.fidelity is not None
    assert dates.fidelity.chrf is not None


@pytest.mark.parametrize("model", MODELS)
def test_int8_cache_keeps_trained_model_accuracy(client: Client, model: str) -> None:
    """Concurrent prompts share slots and reuse each other's prefixes."""
    _, examples = tiny.decoder()
    with ThreadPoolExecutor(NUM_CLIENTS) as pool:
        texts = pool.map(lambda pair: client.generate(model, pair[0]).outputs[0].text, examples)
        exact = sum(text == after for text, (_, after) in zip(texts, examples, strict=True))
    assert exact / len(examples) >= 0.95


def test_encoder_decoder_translates_with_int8_cache(client: Client) -> None:
    """The cross-attention cache stays in float."""
    _, held_out = tiny.dates()
    outputs = client.translate(DATES, [text for text, _ in held_out[:100]]).outputs
    exact = sum(o.text == iso for o, (_, iso) in zip(outputs, held_out[:100], strict=True))
    assert exact >= 98


def test_beam_search_works_with_int8_cache(client: Client) -> None:
    _, held_out = tiny.dates()
    outputs = client.translate(DATES, [text for text, _ in held_out[:50]], beam_size=3).outputs
    exact = sum(o.text == iso for o, (_, iso) in zip(outputs, held_out[:50], strict=True))
    assert exact >= 48
