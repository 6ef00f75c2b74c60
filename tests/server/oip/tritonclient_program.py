"""Calls a server with the public client, and prints what it got as JSON.

Runs in an environment of its own, with ``tritonclient`` and without this project.

Usage: tritonclient_program.py GRPC_ADDRESS ADMIN_ADDRESS HTTP_ADDRESS IMAGE

``IMAGE``: a file, in base64.
"""

import asyncio
import base64
import json
import queue
import sys
from typing import Any

import numpy as np
import tritonclient.grpc as by_grpc
import tritonclient.grpc.aio as by_aio
import tritonclient.http as by_http
import tritonclient.http.aio as by_http_aio
from tritonclient.utils import InferenceServerException

DATE = "3 March 2021"
IMAGE = sys.argv[4]


def texts(module: Any, name: str, *values: str) -> Any:
    return elements(module, name, *(value.encode() for value in values))


def elements(module: Any, name: str, *values: bytes) -> Any:
    tensor = module.InferInput(name, [len(values)], "BYTES")
    tensor.set_data_from_numpy(np.array(values, dtype=object))
    return tensor


def listed(result: Any, name: str) -> list[Any]:
    values = result.as_numpy(name)
    return [one.decode() if isinstance(one, bytes) else one for one in values.ravel().tolist()]


def common(client: Any, module: Any) -> dict[str, Any]:
    """The calls that the gRPC and HTTP clients share."""
    found: dict[str, Any] = {
        "live": client.is_server_live(),
        "ready": client.is_server_ready(),
        "model_ready": client.is_model_ready("dates"),
        "unknown_ready": client.is_model_ready("nobody"),
    }
    dates = client.infer("dates", [texts(module, "text_input", DATE)], request_id="7")
    found["translation"] = listed(dates, "text_output")
    found["vectors"] = listed(
        client.infer("embedder", [texts(module, "text_input", "a", "b")]), "embedding_output"
    )
    passages = [texts(module, "query", "paris"), texts(module, "passages", "a city", "a name")]
    found["scores"] = listed(client.infer("judge", passages), "scores")
    found["labels"] = listed(client.infer("sorter", [texts(module, "text_input", "a")]), "labels")
    image = elements(module, "image_input", base64.b64decode(IMAGE))
    found["image"] = listed(client.infer("vit-embed", [image]), "embedding_output")
    ids = module.InferInput("input_ids", [1, 2], "INT64")
    ids.set_data_from_numpy(np.array([[3, 4]]))
    options = {"max_new_tokens": 3, "temperature": 0.0, "ignore_eos": True}
    outputs = [module.InferRequestedOutput(name) for name in ("text_output", "num_output_tokens")]
    generated = client.infer("tiny-decoder", [ids], outputs=outputs, parameters=options, priority=1)
    found["num_output_tokens"] = listed(generated, "num_output_tokens")
    empty = client.infer(
        "tagger", [texts(module, "text_input", "12")], parameters={"min_score": 1.0}
    )
    found["no_spans"] = list(empty.as_numpy("spans").shape)
    found["no_labels"] = list(empty.as_numpy("labels").shape)
    try:
        client.infer("dates", [texts(module, "pixels", DATE)])
    except InferenceServerException as error:
        found["error"] = [error.status(), error.message()]
    return found


def grpc_calls(address: str, admin_address: str) -> dict[str, Any]:
    with by_grpc.InferenceServerClient(address) as client:
        found = common(client, by_grpc)
        found["metadata"] = client.get_model_metadata("dates", as_json=True)
        found["config"] = client.get_model_config("dates", as_json=True)
        found["server"] = client.get_server_metadata(as_json=True)["name"]
        answers: queue.Queue[Any] = queue.Queue()
        client.async_infer(
            "dates",
            [texts(by_grpc, "text_input", DATE)],
            lambda result, error: answers.put((result, error)),
        )
        found["async"] = listed(answers.get(timeout=30)[0], "text_output")
        found["streamed"] = streamed(client)
        found["statistics"] = client.get_inference_statistics("dates", as_json=True)
        index = client.get_model_repository_index(as_json=True)["models"]
        found["index"] = sorted(model["name"] for model in index)
    with by_grpc.InferenceServerClient(admin_address) as admin:
        admin.unload_model("dates")
        found["unloaded"] = not admin.is_model_ready("dates")
        admin.load_model("dates")
        found["loaded"] = admin.is_model_ready("dates")
    return found


def streamed(client: Any) -> dict[str, Any]:
    """The texts of two requests in one stream, and the error of a third."""
    answers: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    pieces: dict[str, list[str]] = {"a": [], "b": []}
    for name in pieces:
        client.async_stream_infer(
            "dates",
            [texts(by_grpc, "text_input", DATE)],
            request_id=name,
            enable_empty_final_response=True,
        )
    num_open, errors = 2, []
    while num_open:
        result, error = answers.get(timeout=30)
        assert error is None, error
        response = result.get_response()
        if response.parameters["triton_final_response"].bool_param:
            num_open -= 1
        else:
            pieces[response.id] += listed(result, "text_output")
    client.async_stream_infer("nobody", [texts(by_grpc, "text_input", DATE)])
    errors.append(str(answers.get(timeout=30)[1]))
    client.stop_stream()
    return {"pieces": pieces, "errors": errors}


async def aio_calls(address: str) -> dict[str, Any]:
    async with by_aio.InferenceServerClient(address) as client:
        inputs = [texts(by_grpc, "text_input", DATE)]

        async def requests() -> Any:
            yield {"model_name": "dates", "inputs": inputs, "request_id": "1"}

        pieces = []
        async for result, error in client.stream_infer(requests()):
            assert error is None, error
            pieces += listed(result, "text_output")
        found = await client.infer("dates", inputs)
        return {"pieces": pieces, "translation": listed(found, "text_output")}


def http_calls(address: str) -> dict[str, Any]:
    with by_http.InferenceServerClient(address) as client:
        found = common(client, by_http)
        found["metadata"] = client.get_model_metadata("dates")
        found["config"] = client.get_model_config("dates")
        found["server"] = client.get_server_metadata()["name"]
        future = client.async_infer("dates", [texts(by_http, "text_input", DATE)])
        found["async"] = listed(future.get_result(), "text_output")
        tensor = by_http.InferInput("text_input", [1], "BYTES")
        tensor.set_data_from_numpy(np.array([DATE.encode()], dtype=object), binary_data=False)
        outputs = [by_http.InferRequestedOutput("text_output", binary_data=False)]
        found["json"] = listed(client.infer("dates", [tensor], outputs=outputs), "text_output")
        image = by_http.InferInput("image_input", [1], "BYTES")
        image.set_data_from_numpy(np.array([IMAGE.encode()], dtype=object), binary_data=False)
        found["json_image"] = listed(client.infer("vit-embed", [image]), "embedding_output")
        found["statistics"] = client.get_inference_statistics("dates")
        found["index"] = sorted(model["name"] for model in client.get_model_repository_index())
        return found


async def http_aio_calls(address: str) -> dict[str, Any]:
    async with by_http_aio.InferenceServerClient(address) as client:
        result = await client.infer("dates", [texts(by_http, "text_input", DATE)])
        return {"translation": listed(result, "text_output")}


def main() -> None:
    grpc_address, admin_address, http_address = sys.argv[1:4]
    found = {
        "http": http_calls(http_address),
        "http_aio": asyncio.run(http_aio_calls(http_address)),
        "grpc": grpc_calls(grpc_address, admin_address),
        "aio": asyncio.run(aio_calls(grpc_address)),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
