"""ModelStreamInfer: streamed text, several requests, errors, cancellation."""

import threading
from typing import Any

import numpy as np

from tests.server.oip.conftest import Doors
from tests.server.oip.messages import infer_request, outputs_of

FINAL = "triton_final_response"


def _responses(doors: Doors, *requests: Any) -> list[Any]:
    return list(doors.oip.ModelStreamInfer(iter(requests)))


def test_streamed_chunks_join_to_the_whole_text(doors: Doors) -> None:
    request = infer_request("dates", {"max_new_tokens": 12}, text_input=["3 March 2021"])
    whole = outputs_of(doors.oip.ModelInfer(request))["text_output"][0]
    responses = [response.infer_response for response in _responses(doors, request)]
    assert len(responses) > 3
    assert "".join(outputs_of(one)["text_output"][0] for one in responses) == whole
    finals = [one.parameters[FINAL].bool_param for one in responses]
    assert finals == [False] * (len(responses) - 1) + [True]
    assert {one.id for one in responses} == {"a request"}


def test_last_response_may_be_empty(doors: Doors) -> None:
    request = infer_request(
        "dates", {"triton_enable_empty_final_response": True}, text_input=["3 March 2021"]
    )
    *chunks, last = [response.infer_response for response in _responses(doors, request)]
    assert not any(chunk.parameters[FINAL].bool_param for chunk in chunks)
    assert last.parameters[FINAL].bool_param
    assert not last.outputs


def test_streams_of_triton_and_vllm_inputs(doors: Doors) -> None:
    request = infer_request(
        "tiny-decoder",
        text_input=["12"],
        stream=np.array([False]),
        exclude_input_in_output=np.array([False]),
        return_num_output_tokens=np.array([True]),
        sampling_parameters=['{"max_tokens": "4", "temperature": 0, "stop": null}'],
    )
    (response,) = _responses(doors, request)
    found = outputs_of(response.infer_response)
    assert found["text_output"][0].startswith("12")
    assert found["num_output_tokens"].tolist() == [4]


def test_one_stream_has_many_requests_and_survives_errors(doors: Doors) -> None:
    requests = [
        infer_request("dates", text_input=["3 March 2021"]),
        infer_request("nobody", text_input=["1"]),
        infer_request("embedder", text_input=["12"]),
        infer_request("tiny-decoder", {"temperature": -1.0}, text_input=["1"]),
    ]
    for number, request in enumerate(requests):
        request.id = str(number)
    responses = _responses(doors, *requests)
    errors = {one.infer_response.id: one.error_message for one in responses if one.error_message}
    assert errors.keys() == {"1", "3"}
    assert "nobody" in errors["1"]
    assert errors["3"].startswith("parameters.temperature:")
    ends = [
        one.infer_response.id
        for one in responses
        if one.infer_response.parameters[FINAL].bool_param
    ]
    assert sorted(ends) == ["0", "1", "2", "3"]


def test_a_cancelled_stream_frees_its_slots(doors: Doors) -> None:
    requests = [
        infer_request("tiny-decoder", {"ignore_eos": True}, text_input=["1"]) for _ in range(8)
    ]
    ended = threading.Event()
    stream = doors.oip.ModelStreamInfer(_held(requests, ended))
    next(stream)
    stream.cancel()
    ended.set()
    found = doors.ours.generate("tiny-decoder", "1", max_new_tokens=2)
    assert found.usage.output_tokens == 2


def _held(requests: list[Any], ended: threading.Event) -> Any:
    """Requests of a stream that stays open until ``ended``."""
    yield from requests
    ended.wait(30)
