"""LoRA adapters as models of a server, through all protocols."""

import asyncio
import json
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from client.admin import AdminClient
from client.errors import TriuneError
from client.sync import Client
from model.bundle import BundleError
from model.bundle_files import read_manifest
from tests.adapter_models import ADAPTERS, AdaptedModel, adapted_model
from tests.server.in_process_service import service_context
from tests.serving import ServerProcess, server_process

PROMPT = "w7 w9 w11 w13"
LONG = " ".join(f"w{index}" for index in range(50))
OPTIONS: dict[str, Any] = {"max_new_tokens": 12, "token_ids": True}
KINDS = ("llama", "bert")


def _rename(content: dict[str, Any], name: str) -> None:
    content["adapters"][1]["name"] = name


# Changes of a manifest, by a part of the message.
EDITS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "does not fit 0 adapters": lambda content: content.pop("adapters"),
    "does not fit 2 adapters": lambda content: content["graphs"]["decode"]["inputs"].pop(),
    "two adapters have the same name": lambda content: _rename(content, "one"),
    "does not match": lambda content: _rename(content, "a:b"),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, AdaptedModel]:
    root = tmp_path_factory.mktemp("adapters")
    return {kind: adapted_model(root, kind) for kind in KINDS}


@pytest.fixture(scope="module")
def bundles(models: dict[str, AdaptedModel], tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("bundles")
    for kind, model in models.items():
        model.write(root, kind)
        for name in ADAPTERS:
            model.write_merged(root, name, f"{kind}-{name}")
    return root


@pytest.fixture(scope="module")
def server(bundles: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    admin = f"unix:{tmp_path_factory.mktemp('admin') / 'socket'}"
    with server_process(bundles, "--admin", admin) as process:
        process.log.append(admin)
        yield process


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.target) as client:
        yield client


def tokens(client: Client, model: str, prompt: str = PROMPT, **options: Any) -> list[Any]:
    result = client.generate(model, prompt, **OPTIONS, **options)
    assert result.model == model
    return [output.token_ids for output in result.outputs]


@pytest.mark.parametrize("prompt", [PROMPT, LONG])
@pytest.mark.parametrize("options", [{}, {"beam_size": 3}, {"temperature": 0.9, "seed": 4}])
def test_an_adapter_generates_as_its_merged_bundle(
    client: Client, prompt: str, options: dict[str, Any]
) -> None:
    base = tokens(client, "llama", prompt, **options)
    for name in ADAPTERS:
        expected = tokens(client, f"llama-{name}", prompt, **options)
        for _ in range(2):  # the second call reuses the cached prefix of a long prompt
            assert tokens(client, f"llama:{name}", prompt, **options) == expected
        assert expected != base
    assert tokens(client, "llama", prompt, **options) == base


def test_concurrent_calls_of_all_adapters_do_not_mix(client: Client) -> None:
    names = ["llama", *(f"llama:{name}" for name in ADAPTERS)]
    calls = [(name, f"w{start} {PROMPT}") for start in range(8) for name in names]
    expected = [tokens(client, *call) for call in calls]
    with ThreadPoolExecutor(len(calls)) as pool:
        assert list(pool.map(lambda call: tokens(client, *call), calls)) == expected


def test_a_stream_has_the_text_of_the_adapter(client: Client) -> None:
    whole = client.generate("llama:one", PROMPT, max_new_tokens=12).outputs[0].text
    pieces = client.generate_stream("llama:one", PROMPT, max_new_tokens=12)
    assert "".join(piece.text for piece in pieces) == whole


def test_scores_and_embeddings_are_those_of_the_merged_bundles(client: Client) -> None:
    for name in ADAPTERS:
        pair = [(PROMPT, "w20 w21")]
        found, expected = (
            client.score(model, pair).outputs[0].score
            for model in (f"llama:{name}", f"llama-{name}")
        )
        assert found == pytest.approx(expected, abs=1e-4)
        texts = [PROMPT, LONG]
        labels, merged = (
            [
                [one.score for one in sorted(output.labels, key=lambda one: one.label)]
                for output in client.classify(m, texts).outputs
            ]
            for m in (f"bert:{name}", f"bert-{name}")
        )
        np.testing.assert_allclose(labels, merged, atol=1e-5)


def test_models_name_their_adapters_and_adapters_their_model(client: Client) -> None:
    listed = {model.name: model for model in client.list_models()}
    for kind in KINDS:
        names = tuple(f"{kind}:{name}" for name in ADAPTERS)
        assert (listed[kind].adapters, listed[kind].base_model) == (names, "")
        for name in names:
            assert (listed[name].adapters, listed[name].base_model) == ((), kind)
            assert listed[name].tasks == listed[kind].tasks
            assert listed[name].memory is None
            adapted, base = listed[name].parity, listed[kind].parity
            assert adapted is not None
            assert base is not None
            assert (adapted.perplexity, base.perplexity > 0) == (0, kind == "llama")
            assert adapted.max_absolute_error != base.max_absolute_error
            assert client.get_model(name) == listed[name]
    assert listed["llama-one"].adapters == ()


@pytest.mark.parametrize(
    "name",
    [
        *("llama:three", "llama:", "llama-one:one", ":one", "llama:one:two"),
        *(":latest", "llama:one:latest", "unknown:latest"),
    ],
)
def test_an_unknown_adapter_is_not_found(client: Client, name: str) -> None:
    with pytest.raises(TriuneError, match=re.escape(name)) as error:
        client.generate(name, PROMPT)
    assert error.value.code == grpc.StatusCode.NOT_FOUND
    with pytest.raises(TriuneError) as unknown:
        client.generate("unknown", PROMPT)
    assert [one.field for one in error.value.violations] == [
        one.field for one in unknown.value.violations
    ]


def test_latest_is_the_base(server: ServerProcess, client: Client) -> None:
    """Clients of Ollama add this tag to a name, by its own API and by OpenAI's."""
    base = client.generate("llama", PROMPT, **OPTIONS)
    found = client.generate("llama:latest", PROMPT, **OPTIONS)
    assert (found.model, found.outputs[0].text) == ("llama", base.outputs[0].text)
    assert client.get_model("llama:latest") == client.get_model("llama")
    body = {"model": "llama:latest", "prompt": PROMPT, "max_tokens": 12, "temperature": 0}
    answer = httpx.post(f"{server.http_url}/v1/completions", json=body).raise_for_status().json()
    assert answer["choices"][0]["text"] == base.outputs[0].text
    assert ":latest" not in httpx.get(server.metrics_url).text


def test_openai_lists_adapters_with_their_parent(server: ServerProcess) -> None:
    listed = httpx.get(f"{server.http_url}/v1/models").raise_for_status().json()["data"]
    by_name = {model["id"]: model for model in listed}
    assert "parent" not in by_name["llama"]
    for name in ("llama:one", "llama:two"):
        assert (by_name[name]["parent"], by_name[name]["root"]) == ("llama", "llama")
        one = httpx.get(f"{server.http_url}/v1/models/{name}").raise_for_status().json()
        assert one == by_name[name]


def test_openai_completions_name_an_adapter(server: ServerProcess, client: Client) -> None:
    for name in ("llama:one", "llama:two"):
        body = {"model": name, "prompt": PROMPT, "max_tokens": 12, "temperature": 0}
        answer = (
            httpx.post(f"{server.http_url}/v1/completions", json=body).raise_for_status().json()
        )
        expected = (
            client.generate(name.replace(":", "-"), PROMPT, max_new_tokens=12).outputs[0].text
        )
        assert (answer["model"], answer["choices"][0]["text"]) == (name, expected)
    body = {"model": "llama:three", "prompt": PROMPT}
    assert httpx.post(f"{server.http_url}/v1/completions", json=body).status_code == 404


def test_open_inference_protocol_has_adapters_in_its_paths(server: ServerProcess) -> None:
    url = f"{server.http_url}/v2/models/bert:one"
    assert httpx.get(f"{url}/ready").status_code == 200
    metadata = httpx.get(url).raise_for_status().json()
    assert metadata["name"] == "bert:one"
    name = metadata["inputs"][0]["name"]
    text = {"name": name, "shape": [1], "datatype": "BYTES", "data": [PROMPT]}
    answers = [
        httpx.post(f"{server.http_url}/v2/models/{model}/infer", json={"inputs": [text]})
        .raise_for_status()
        .json()
        for model in ("bert:one", "bert-one")
    ]
    found, expected = ({one["name"]: one["data"] for one in each["outputs"]} for each in answers)
    assert found.keys() == expected.keys()
    for name, data in expected.items():
        if isinstance(data[0], float):
            np.testing.assert_allclose(found[name], data, atol=1e-5)
        else:
            assert found[name] == data
    assert httpx.get(f"{server.http_url}/v2/models/bert:three/ready").status_code != 200
    assert httpx.get(f"{server.http_url}/v2/models/bert:three").status_code == 404


def test_tei_has_adapters_in_its_paths(server: ServerProcess) -> None:
    answers = [
        httpx.post(f"{server.http_url}/{model}/predict", json={"inputs": PROMPT})
        .raise_for_status()
        .json()
        for model in ("bert:one", "bert-one")
    ]
    found, expected = ({one["label"]: one["score"] for one in each} for each in answers)
    assert found == pytest.approx(expected, abs=1e-5)
    assert httpx.get(f"{server.http_url}/bert:one/info").json()["model_id"] == "bert:one"


def test_metrics_are_labelled_by_adapter(server: ServerProcess, client: Client) -> None:
    client.generate("llama:two", PROMPT, max_new_tokens=3)
    lines = httpx.get(server.metrics_url).text.splitlines()
    requests = [line for line in lines if line.startswith("triune_requests_total")]
    assert any('model="llama:two"' in line and 'method="Generate"' in line for line in requests)
    assert not any('model="unknown"' in line and 'code="OK"' in line for line in requests)


def test_an_adapter_is_loaded_and_unloaded_with_its_bundle(server: ServerProcess) -> None:
    with AdminClient(server.log[-1]) as admin:
        for call in (admin.load_model, admin.unload_model):
            with pytest.raises(TriuneError, match="llama:one") as error:
                call("llama:one")
            assert error.value.code == grpc.StatusCode.INVALID_ARGUMENT
            assert [one.field for one in error.value.violations] == ["model"]


@pytest.mark.parametrize("message", EDITS)
def test_a_manifest_that_does_not_fit_its_graphs_is_refused(
    bundles: Path, tmp_path: Path, message: str
) -> None:
    folder = tmp_path / "llama" / "1"
    shutil.copytree(bundles / "llama" / "1", folder)
    content = json.loads((folder / "bundle.json").read_text())
    EDITS[message](content)
    (folder / "bundle.json").write_text(json.dumps(content))
    with pytest.raises(BundleError, match=message):
        read_manifest(folder)


def test_a_server_with_devices_refuses_adapters(bundles: Path, tmp_path: Path) -> None:
    shutil.copytree(bundles / "llama", tmp_path / "llama")
    failures: list[str] = []

    async def load() -> None:
        options: Any = {"has_device_memory": True}
        async with service_context(tmp_path, **options) as context:
            failures.extend(entry.failure for entry in context.registry.entries)

    asyncio.run(load())
    assert failures == ["llama/1: LoRA adapters are served on CPUs only"]
