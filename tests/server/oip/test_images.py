"""Models of images by the Open Inference Protocol: descriptions, tensors and errors."""

import json
import urllib.error
import urllib.request
from typing import Any

import grpc
import numpy as np
import pytest

from protos.inference import open_inference_pb2 as pb
from server.bounds import MAX_IMAGES
from tests.pictures import encoded, picture
from tests.server.oip.conftest import Doors
from tests.server.oip.messages import infer_request, outputs_of, raw_texts

FILES = [picture(0), picture(1, "JPEG")]
TENSOR = {"name": "image_input", "datatype": "BYTES", "shape": [len(FILES)]}
IN_BASE64 = [encoded(data) for data in FILES]


def http(doors: Doors, path: str, body: bytes | None = None, json_bytes: int = 0) -> Any:
    """The answer to a body, whose first ``json_bytes`` are JSON if that is not 0."""
    headers = {"inference-header-content-length": str(json_bytes)} if json_bytes else {}
    request = urllib.request.Request(f"{doors.http}/v2/models/{path}", body, headers)
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        ("vit", ["image_input"]),
        ("vit-embed", ["image_input"]),
        ("vilbert", ["text_input", "image_input"]),
        ("embedder", ["text_input", "query", "passages"]),
    ],
)
def test_descriptions_name_the_inputs(doors: Doors, model: str, inputs: list[str]) -> None:
    metadata = doors.oip.ModelMetadata(pb.ModelMetadataRequest(name=model))
    assert [tensor.name for tensor in metadata.inputs] == inputs
    assert {(tensor.datatype, *tensor.shape) for tensor in metadata.inputs} <= {
        ("BYTES", -1),
        ("BYTES", 1),
    }
    config = doors.oip.ModelConfig(pb.ModelConfigRequest(name=model)).config
    assert [tensor.name for tensor in config.input] == inputs
    if "image_input" in inputs:
        assert not any(tensor.optional for tensor in config.input)
    served = [tensor["name"] for tensor in http(doors, model)["inputs"]]
    configured = [tensor["name"] for tensor in http(doors, f"{model}/config")["input"]]
    assert served == configured == inputs


def test_images_have_the_outputs_of_our_own_call(doors: Doors) -> None:
    vectors = [output.values for output in doors.ours.embed("vit-embed", FILES).outputs]
    expected = np.array(vectors, np.float32).tolist()
    raw = infer_request("vit-embed", image_input=([2, 1], FILES))
    typed = pb.ModelInferRequest(model_name="vit-embed")
    tensor = typed.inputs.add(name="image_input", datatype="BYTES", shape=[2])
    tensor.contents.bytes_contents.extend(FILES)
    for request in (raw, typed):
        assert outputs_of(doors.oip.ModelInfer(request))["embedding_output"].tolist() == expected
    (streamed,) = doors.oip.ModelStreamInfer(iter([raw]))
    assert outputs_of(streamed.infer_response)["embedding_output"].tolist() == expected
    data = raw_texts(*FILES)
    head = json.dumps({"inputs": [TENSOR | {"parameters": {"binary_data_size": len(data)}}]})
    in_json = json.dumps({"inputs": [TENSOR | {"data": IN_BASE64}]})
    nested = json.dumps({"inputs": [TENSOR | {"shape": [2, 1], "data": [[x] for x in IN_BASE64]}]})
    for body, json_bytes in ((head.encode() + data, len(head)), (in_json, 0), (nested, 0)):
        content = body.encode() if isinstance(body, str) else body
        (output,) = http(doors, "vit-embed/infer", content, json_bytes)["outputs"]
        found = np.array(output["data"], np.float32).reshape(output["shape"])
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_classify_returns_the_best_labels(doors: Doors) -> None:
    request = infer_request("vit", {"top_k": 2}, image_input=FILES)
    found = outputs_of(doors.oip.ModelInfer(request))
    outputs = doors.ours.classify("vit", FILES, top_k=2).outputs
    assert found["labels"].tolist() == [[x.label for x in output.labels] for output in outputs]
    np.testing.assert_allclose(
        found["scores"], [[x.score for x in output.labels] for output in outputs], atol=1e-6
    )


def test_texts_with_images(doors: Doors) -> None:
    texts = ["HELLO", "A?"]
    request = infer_request("vilbert", text_input=texts, image_input=FILES)
    found = outputs_of(doors.oip.ModelInfer(request))
    pairs = list(zip(texts, FILES, strict=True))
    outputs = doors.ours.classify("vilbert", pairs=pairs).outputs
    assert found["labels"].tolist() == [[x.label for x in output.labels] for output in outputs]


def test_texts_about_images(doors: Doors) -> None:
    parameters = {"max_tokens": 8}
    request = infer_request("captioner", parameters, image_input=([2, 1], FILES))
    for name in ("text_output", "num_input_tokens", "output_ids"):
        request.outputs.add(name=name)
    found = outputs_of(doors.oip.ModelInfer(request))
    expected = doors.ours.generate("captioner", images=FILES, max_new_tokens=8, token_ids=True)
    assert found["text_output"].tolist() == [[output.text] for output in expected.outputs]
    assert found["num_input_tokens"].tolist() == [[7], [7]]
    longest = found["output_ids"].shape[-1]
    rows = [[*x.token_ids, *[-1] * (longest - len(x.token_ids))] for x in expected.outputs]
    assert found["output_ids"].reshape(2, longest).tolist() == rows
    streamed = infer_request("captioner", parameters, image_input=FILES[:1])
    parts = doors.oip.ModelStreamInfer(iter([streamed]))
    texts = [outputs_of(part.infer_response).get("text_output", [""])[0] for part in parts]
    assert "".join(texts) == expected.outputs[0].text
    in_json = {"inputs": [TENSOR | {"data": IN_BASE64}], "parameters": parameters}
    (output,) = http(doors, "captioner/infer", json.dumps(in_json).encode())["outputs"]
    assert output["data"] == [each.text for each in expected.outputs]


def test_a_model_of_images_scores_no_texts(doors: Doors) -> None:
    metadata = doors.oip.ModelMetadata(pb.ModelMetadataRequest(name="captioner"))
    names = [tensor.name for tensor in metadata.inputs]
    assert names[0] == "image_input"
    assert not {"text_input", "input_ids", "context", "target"} & set(names)


REFUSED: dict[str, tuple[Any, str]] = {
    "a text to a model of images that writes": (
        infer_request("captioner", text_input=["a"]),
        "text_input: is not an input of generate: image_input",
    ),
    "nothing to write about": (
        infer_request("captioner"),
        "image_input: is required for generate",
    ),
    "a damaged image to write about": (
        infer_request("captioner", image_input=[FILES[0], FILES[0][:80]]),
        "image_input[1]: the image is damaged",
    ),
    "scores of texts": (
        infer_request("captioner", {"task": "score"}, context=["a"], target=["b"]),
        "parameters.task: 'score' is not a task of 'captioner': generate",
    ),
    "a text": (
        infer_request("vit", text_input=["a"]),
        "text_input: is not an input of classify: image_input",
    ),
    "another name": (
        infer_request("vit-embed", pixels=FILES),
        "pixels: is not an input of embed: image_input",
    ),
    "nothing": (infer_request("vit-embed"), "image_input: is required for embed"),
    "a text too": (
        infer_request("vit", text_input=["a"], image_input=FILES),
        "text_input: is not an input of classify: image_input",
    ),
    "a pair": (
        infer_request("vilbert", text_input=["a"], text_pair=["b"]),
        "text_pair: is not an input of classify: text_input, image_input",
    ),
    "an image to a model of texts": (
        infer_request("sorter", image_input=FILES),
        "image_input: is not an input of classify: text_input, text_pair",
    ),
    "no image": (
        infer_request("vilbert", text_input=["a"]),
        "image_input: is required for classify",
    ),
    "numbers": (
        infer_request("vit", image_input=np.zeros([1, 24, 16, 3], np.float32)),
        "image_input: datatype 'FP32' is not BYTES",
    ),
    "fewer images": (
        infer_request("vilbert", text_input=["a", "b"], image_input=FILES[:1]),
        "image_input: 1 given for 2 texts",
    ),
    "too many": (
        infer_request("vit", image_input=([1 << 62], FILES)),
        f"elements, at most {MAX_IMAGES}",
    ),
    "no image at all": (infer_request("vit", image_input=[]), "image_input: must not be empty"),
    "damaged": (
        infer_request("vit", image_input=[FILES[0], FILES[0][:80]]),
        "image_input[1]: the image is damaged",
    ),
    "an option of texts": (
        infer_request("vit", {"max_tokens": 4}, image_input=FILES),
        "parameters.max_tokens: does not apply to images",
    ),
    "images as a parameter": (
        infer_request("vit", {"images": "a"}, image_input=FILES),
        "parameters.images: is not known",
    ),
    "another task": (
        infer_request("vit", {"task": "embed"}, image_input=FILES),
        "parameters.task: 'embed' is not a task of 'vit': classify",
    ),
}


@pytest.mark.parametrize(("request_", "message"), REFUSED.values(), ids=REFUSED)
def test_errors_name_the_tensor(doors: Doors, request_: Any, message: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        doors.oip.ModelInfer(request_)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert message in str(caught.value.details())
    assert doors.oip.ModelInfer(infer_request("vit", image_input=FILES)).outputs  # it goes on


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (["https://a.example/b.png"], "image_input[0]: is an address (https:)"),
        (["a cat!"], "image_input[0]: is not base64"),
        ([3], "image_input: data is not a list of BYTES"),
    ],
)
def test_json_without_base64_is_refused(doors: Doors, data: list[Any], message: str) -> None:
    body = json.dumps({"inputs": [TENSOR | {"shape": [1], "data": data}]}).encode()
    with pytest.raises(urllib.error.HTTPError) as caught:
        http(doors, "vit/infer", body)
    assert caught.value.code == 400
    assert json.load(caught.value)["error"].startswith(message)
