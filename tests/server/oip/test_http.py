"""The Open Inference Protocol over HTTP: bodies of ``infer`` and of Triton's ``generate``."""

import json
import urllib.error
import urllib.request
from typing import Any

import numpy as np
import pytest

from tests.server.oip.conftest import Doors
from tests.server.oip.messages import infer_request, outputs_of, raw_texts


def test_binary_data_over_http(doors: Doors) -> None:
    expected = outputs_of(doors.oip.ModelInfer(infer_request("embedder", text_input=["a", "b"])))
    raw = raw_texts("a", "b")
    tensor = {"name": "text_input", "shape": [2], "datatype": "BYTES"}
    body = {
        "id": "7",
        "inputs": [tensor | {"parameters": {"binary_data_size": len(raw)}}],
        "outputs": [{"name": "embedding_output", "parameters": {"binary_data": True}}],
    }
    head = json.dumps(body).encode()
    request = urllib.request.Request(
        f"{doors.http}/v2/models/embedder/infer",
        head + raw,
        {"Inference-Header-Content-Length": str(len(head))},
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        length = int(response.headers["Inference-Header-Content-Length"])
        answer = response.read()
    described = json.loads(answer[:length])
    assert described["id"] == "7"
    size = described["outputs"][0]["parameters"]["binary_data_size"]
    vectors = np.frombuffer(answer[length : length + size], np.float32).reshape(2, -1)
    assert vectors.tolist() == expected["embedding_output"].tolist()


def test_null_is_nothing_over_http(doors: Doors) -> None:
    def post(path: str, body: dict[str, Any]) -> Any:
        url = f"{doors.http}/v2/models/{path}"
        request = urllib.request.Request(url, json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.load(response)

    nothing = {"id": None, "parameters": None}
    tensor = {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["a"]}
    inputs = [tensor | {"parameters": None}]
    for outputs in (None, [{"name": "embedding_output", "parameters": None}]):
        body = {**nothing, "inputs": inputs, "outputs": outputs}
        assert post("embedder/infer", body) == post("embedder/infer", {"inputs": [tensor]})
    text = {"text_input": "3 March 2021"}
    assert post("dates/generate", nothing | text) == post("dates/generate", text)


def test_generate_over_http(doors: Doors) -> None:
    whole = outputs_of(doors.oip.ModelInfer(infer_request("dates", text_input=["3 March 2021"])))
    body = {"id": "1", "text_input": "3 March 2021", "parameters": {"max_tokens": 20}}

    def post(path: str) -> bytes:
        url = f"{doors.http}/v2/models/dates/{path}"
        request = urllib.request.Request(url, json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=30) as response:
            return bytes(response.read())

    answer = json.loads(post("generate"))
    assert answer["text_output"] == whole["text_output"][0]
    assert (answer["id"], answer["model_name"], answer["model_version"]) == ("1", "dates", "1")
    events = [json.loads(line[6:]) for line in post("generate_stream").split(b"\n\n") if line]
    assert "".join(event["text_output"] for event in events) == whole["text_output"][0]
    assert len(events) > 3


def test_streams_of_several_texts_say_which(doors: Doors) -> None:
    texts = ["3 March 2021", "4 May 1999"]
    body = {"text_input": texts, "parameters": {"beam_size": 2, "n": 2}}

    def post(path: str) -> bytes:
        url = f"{doors.http}/v2/models/dates/{path}"
        request = urllib.request.Request(url, json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=30) as response:
            return bytes(response.read())

    whole = json.loads(post("generate"))["text_output"]
    events = [json.loads(line[6:]) for line in post("generate_stream").split(b"\n\n") if line]
    found = {(index, hypothesis): "" for index in (0, 1) for hypothesis in (0, 1)}
    for event in events:
        found[event["index"], event["hypothesis"]] += event["text_output"]
    assert list(found.values()) == whole


def test_empty_words_of_tensorrt_llm_are_none(doors: Doors) -> None:
    """The request of TensorRT-LLM's guide."""
    body = {"text_input": "12", "max_tokens": 4, "bad_words": "", "stop_words": ""}
    url = f"{doors.http}/v2/models/tiny-decoder/generate"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode())) as answer:
        assert json.load(answer)["text_output"]


@pytest.mark.parametrize("is_nested", [False, True])
def test_generate_takes_the_inputs_of_tritons_vllm_backend(doors: Doors, is_nested: bool) -> None:
    options = {
        "exclude_input_in_output": False,
        "return_num_output_tokens": True,
        "sampling_parameters": '{"max_tokens": 4, "ignore_eos": true}',
    }
    body = {"text_input": "12", **({"parameters": options} if is_nested else options)}
    request = urllib.request.Request(
        f"{doors.http}/v2/models/tiny-decoder/generate", json.dumps(body).encode()
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        answer = json.load(response)
    assert answer["text_output"].startswith("12")
    assert answer["num_output_tokens"] == 4


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    "path",
    [
        *("trace/setting", "models/embedder/trace/setting", "logging"),
        *("systemsharedmemory/status", "cudasharedmemory/region/a/register"),
    ],
)
def test_what_is_not_supported_says_so(doors: Doors, method: str, path: str) -> None:
    data = None if method == "GET" else b"{}"
    request = urllib.request.Request(f"{doors.http}/v2/{path}", data, method=method)
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=30)
    assert caught.value.code == 501  # as Triton's
    reason = json.load(caught.value)["error"]
    assert "not supported" in reason or "command line" in reason
