"""Tag with the request's labels by Hugging Face's route and the Open Inference Protocol."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest

from protos.inference import open_inference_pb2_grpc
from tests.frontends.test_retrieval_models import error, post
from tests.gliner_models import GLINER, SAMPLE, Entity, Rules, reference
from tests.server.oip.messages import infer_request, outputs_of
from tests.serving import ServerProcess, server_process

TEXTS = [SAMPLE, "Call 555-0199, or write to her!"]
LABELS = ["person", "city", "date"]


@pytest.fixture(scope="module")
def server(gliner_bundles: Path) -> Iterator[ServerProcess]:
    with server_process(gliner_bundles, "--threads", "1") as running:
        yield running


@pytest.fixture(scope="module")
def http(server: ServerProcess) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.http_url, timeout=60) as http:
        yield http


def check(found: list[Entity], expected: list[Entity]) -> None:
    assert found
    assert [each[:3] for each in found] == [each[:3] for each in expected]
    assert [each.score for each in found] == pytest.approx([x.score for x in expected], abs=2e-5)


@pytest.mark.parametrize("multi_label", [False, True])
def test_hugging_faces_token_classification(http: httpx2.Client, *, multi_label: bool) -> None:
    parameters = {"candidate_labels": LABELS, "multi_label": multi_label}
    body = post(http, f"/{GLINER}", inputs=TEXTS, parameters=parameters)
    for text, entities in zip(TEXTS, body, strict=True):
        assert all(each["word"] == text[each["start"] : each["end"]] for each in entities)
        check(
            [Entity(x["start"], x["end"], x["entity_group"], x["score"]) for x in entities],
            reference(text, LABELS, Rules(multi_label=multi_label)),
        )


def test_errors_of_hugging_faces_route_name_the_field(http: httpx2.Client) -> None:
    for parameters, field in (
        ({}, "candidate_labels: must not be empty"),
        ({"candidate_labels": ["a", ""]}, "candidate_labels[1]"),
        ({"candidate_labels": ["a"], "aggregation_strategy": "max"}, "aggregation"),
        ({"candidate_labels": "a"}, "candidate_labels"),
    ):
        status, message = error(http, f"/{GLINER}", inputs=SAMPLE, parameters=parameters)
        assert status == 400
        assert field in message


OPTIONS: list[dict[str, Any]] = [
    {},
    {"min_score": 0.9},
    {"nested": True, "min_score": 0.3},
    {"multi_label": True},
]


def entities(outputs: dict[str, Any], index: int) -> list[Entity]:
    """Those of the text ``index``, in which their texts are."""
    found = []
    for label, text, score, (row, start, end) in zip(
        *(outputs[name] for name in ("labels", "entities", "scores", "spans")), strict=True
    ):
        if row == index:
            assert TEXTS[index][start:end] == text
            found.append(Entity(int(start), int(end), label, float(score)))
    return found


@pytest.mark.parametrize("options", OPTIONS)
def test_open_inference_protocol(
    server: ServerProcess, http: httpx2.Client, options: dict[str, Any]
) -> None:
    given = {"text_input": TEXTS, "candidate_labels": LABELS}
    tensors = [
        {"name": name, "datatype": "BYTES", "shape": [len(data)], "data": data}
        for name, data in given.items()
    ]
    answer = post(http, f"/v2/models/{GLINER}/infer", inputs=tensors, parameters=options)
    by_http = {each["name"]: each["data"] for each in answer["outputs"]}
    spans = by_http["spans"]
    by_http["spans"] = [spans[at : at + 3] for at in range(0, len(spans), 3)]
    with grpc.insecure_channel(server.target) as channel:
        stub: Any = open_inference_pb2_grpc.GRPCInferenceServiceStub(channel)
        by_grpc = outputs_of(stub.ModelInfer(infer_request(GLINER, options, **given)))
    for index, text in enumerate(TEXTS):
        rules = Rules(**{"min_score": 0.5, **options})
        expected = reference(text, LABELS, rules)
        for outputs in (by_http, by_grpc):
            found = entities(outputs, index)
            if expected:
                check(found, expected)
            else:
                assert not found


def test_labels_are_an_optional_tensor(http: httpx2.Client) -> None:
    inputs = {each["name"]: each for each in http.get(f"/v2/models/{GLINER}").json()["inputs"]}
    assert inputs["candidate_labels"]["datatype"] == "BYTES"
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [2], "data": TEXTS}
    status, message = error(http, f"/v2/models/{GLINER}/infer", inputs=[tensor])
    assert status == 400
    assert "candidate_labels: must not be empty" in message
