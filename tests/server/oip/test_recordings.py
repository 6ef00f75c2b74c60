"""Models of speech by the Open Inference Protocol: descriptions, tensors and errors."""

import json
from base64 import b64encode
from typing import Any

import grpc
import numpy as np
import pytest

from protos.inference import open_inference_pb2 as pb
from tests.recordings import tone, wav
from tests.server.oip.conftest import Doors
from tests.server.oip.messages import infer_request, outputs_of, raw_texts
from tests.server.oip.test_images import http

MODEL = "speech"
FILE = wav(tone(3.0, 16_000))
OUTPUTS = ["text_output", "language", "segments", "segment_seconds"]


def test_descriptions_name_the_tensors(doors: Doors) -> None:
    metadata = doors.oip.ModelMetadata(pb.ModelMetadataRequest(name=MODEL))
    (recording_input,) = metadata.inputs
    assert (recording_input.name, recording_input.datatype) == ("audio_input", "BYTES")
    assert list(recording_input.shape) == [1]
    assert [tensor.name for tensor in metadata.outputs] == [*OUTPUTS, "words", "word_seconds"]
    config = doors.oip.ModelConfig(pb.ModelConfigRequest(name=MODEL)).config
    assert config.parameters["tasks"].string_value == "transcribe"
    assert not config.model_transaction_policy.decoupled


def test_outputs_are_those_of_our_own_call(doors: Doors) -> None:
    expected = doors.ours.transcribe(MODEL, FILE, language="de")
    request = infer_request(MODEL, {"language": "de"}, audio_input=[FILE])
    plain = outputs_of(doors.oip.ModelInfer(request))
    assert {name: list(values) for name, values in plain.items()} == {
        "text_output": [expected.text]
    }
    for name in OUTPUTS:
        request.outputs.add(name=name)
    found = outputs_of(doors.oip.ModelInfer(request))
    assert list(found["language"]) == ["de"]
    assert list(found["segments"]) == [segment.text for segment in expected.segments]
    times = [(segment.start_seconds, segment.end_seconds) for segment in expected.segments]
    assert found["segment_seconds"].tolist() == np.array(times, np.float32).tolist()
    (streamed,) = doors.oip.ModelStreamInfer(iter([request]))
    assert outputs_of(streamed.infer_response)["text_output"] == found["text_output"]


def test_a_recording_in_base64(doors: Doors) -> None:
    tensor = {"name": "audio_input", "datatype": "BYTES", "shape": [1]}
    body = {"inputs": [{**tensor, "data": [b64encode(FILE).decode()]}]}
    answer = http(doors, f"{MODEL}/infer", json.dumps(body).encode())
    expected = doors.ours.transcribe(MODEL, FILE)
    assert answer["outputs"][0]["data"] == [expected.text]


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (infer_request(MODEL), "audio_input: is required for transcribe"),
        (infer_request(MODEL, audio_input=[FILE, FILE]), "audio_input: has 2 elements, not 1"),
        (infer_request(MODEL, audio_input=[b"nonsense"]), "audio_input: the recording is not one"),
        (
            infer_request(MODEL, text_input=["a"]),
            "text_input: is not an input of transcribe: audio_input",
        ),
        (
            infer_request(MODEL, {"beam_size": 65}, audio_input=[FILE]),
            "parameters.beam_size: 65 is not in",
        ),
        (
            infer_request(MODEL, {"language": "xx"}, audio_input=[FILE]),
            "parameters.language: 'xx' is not a language",
        ),
        (
            infer_request(MODEL, {"max_tokens": 3}, audio_input=[FILE]),
            "parameters.max_tokens: is not known; known: beam_size, language, prompt",
        ),
        (
            infer_request("embedder", {"task": "transcribe"}, audio_input=[FILE]),
            "parameters.task: 'transcribe' is not a task of 'embedder'",
        ),
    ],
)
def test_errors_name_the_tensor_or_the_parameter(doors: Doors, request_: Any, message: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        doors.oip.ModelInfer(request_)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert str(caught.value.details()).startswith(message)


def test_a_recording_in_a_binary_body(doors: Doors) -> None:
    data = raw_texts(FILE)
    tensor = {"name": "audio_input", "datatype": "BYTES", "shape": [1]}
    names = ["segments", "words", "word_seconds"]
    body = {
        "inputs": [{**tensor, "parameters": {"binary_data_size": len(data)}}],
        "outputs": [{"name": name} for name in names],
        "parameters": {"language": "de", "prompt": "Triune"},
    }
    head = json.dumps(body).encode()
    answer = http(doors, f"{MODEL}/infer", head + data, len(head))
    expected = doors.ours.transcribe(
        MODEL, FILE, language="de", prompt="Triune", word_timestamps=True
    )
    words = [word for segment in expected.segments for word in segment.words]
    outputs = {output["name"]: output for output in answer["outputs"]}
    assert outputs["segments"]["data"] == [segment.text for segment in expected.segments]
    assert outputs["words"]["data"] == [word.text for word in words] != []
    assert outputs["word_seconds"]["shape"] == [len(words), 2]
    times = [time for word in words for time in (word.start_seconds, word.end_seconds)]
    assert outputs["word_seconds"]["data"] == pytest.approx(times, rel=1e-6)
