"""The same request by triune.v1 and by the Open Inference Protocol gives the same result."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import pytest

from client.encoder_types import Question
from client.errors import TriuneError
from tests.retrieval_models import MULTI_VECTOR, SPARSE
from tests.server.oip.conftest import Doors
from tests.server.oip.messages import infer_request, outputs_of

DATES = ["3 March 2021", "1 May 1999"]
TEXTS = ["angela merkel met barack obama", "12"]
SAMPLING = {"temperature": 1.5, "seed": 7, "max_new_tokens": 6, "ignore_eos": True}


def by_grpc(doors: Doors, model: str, parameters: dict[str, Any], **inputs: Any) -> dict[str, Any]:
    return outputs_of(doors.oip.ModelInfer(infer_request(model, parameters, **inputs)))


def by_http(doors: Doors, model: str, parameters: dict[str, Any], **inputs: Any) -> dict[str, Any]:
    body = {
        "parameters": parameters,
        "inputs": [
            {
                "name": name,
                "shape": list(np.shape(value)),
                "datatype": "INT64" if isinstance(value, np.ndarray) else "BYTES",
                "data": value.tolist() if isinstance(value, np.ndarray) else value,
            }
            for name, value in inputs.items()
        ],
    }
    request = urllib.request.Request(
        f"{doors.http}/v2/models/{model}/infer", json.dumps(body).encode()
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        found = json.load(response)
    return {
        tensor["name"]: np.array(tensor["data"]).reshape(tensor["shape"])
        for tensor in found["outputs"]
    }


Door = Callable[..., dict[str, Any]]
both_doors = pytest.mark.parametrize("door", [by_grpc, by_http])


@both_doors
@pytest.mark.parametrize("options", [{"max_new_tokens": 8}, SAMPLING, {"beam_size": 2}])
@pytest.mark.parametrize("model", ["dates", "tiny-decoder"])
def test_generated_text(doors: Doors, door: Door, model: str, options: dict[str, Any]) -> None:
    call = doors.ours.translate if model == "dates" else doors.ours.generate
    inputs = DATES if model == "dates" else ["1", "23"]
    expected = [output.text for output in call(model, inputs, **options).outputs]
    found = door(doors, model, options, text_input=inputs)
    assert found["text_output"].tolist() == expected


@both_doors
def test_token_ids(doors: Doors, door: Door) -> None:
    tokens = doors.ours.tokenize("tiny-decoder", "12").outputs[0].token_ids
    expected = doors.ours.generate("tiny-decoder", token_inputs=[tokens], max_new_tokens=6)
    found = door(doors, "tiny-decoder", {"max_new_tokens": 6}, input_ids=np.array([tokens]))
    assert found["text_output"].tolist() == [expected.outputs[0].text]


@both_doors
def test_vectors(doors: Doors, door: Door) -> None:
    expected = [output.values for output in doors.ours.embed("embedder", TEXTS).outputs]
    vectors = door(doors, "embedder", {}, text_input=TEXTS)["embedding_output"]
    assert vectors.astype(np.float32).tolist() == np.array(expected, np.float32).tolist()


@both_doors
def test_sparse_vectors(doors: Doors, door: Door) -> None:
    options: dict[str, Any] = {"max_active_dims": 7, "input_type": "query"}
    expected = doors.ours.embed(SPARSE, TEXTS, **options).outputs
    found = door(doors, SPARSE, options, text_input=TEXTS)
    assert found.keys() == {"indices", "values", "tokens"}
    assert found["values"].shape == (14,)
    for index, output in enumerate(expected):
        assert output.sparse is not None
        rows = found["indices"][:, 0] == index
        assert found["indices"][rows, 1].tolist() == list(output.sparse.indices)
        assert found["values"][rows].astype(np.float32).tolist() == list(output.sparse.values)
        assert found["tokens"][rows].tolist() == list(output.sparse.tokens)


@both_doors
@pytest.mark.parametrize("input_type", ["query", "document", None])
def test_vectors_of_tokens(doors: Doors, door: Door, input_type: str | None) -> None:
    options: dict[str, Any] = {} if input_type is None else {"input_type": input_type}
    expected = doors.ours.embed(MULTI_VECTOR, TEXTS, **options).outputs
    found = door(doors, MULTI_VECTOR, options, text_input=TEXTS)
    assert found.keys() == {"token_embeddings", "tokens", "spans"}
    for index, output in enumerate(expected):
        rows = found["spans"][:, 0] == index
        vectors = found["token_embeddings"][rows].astype(np.float32)
        assert vectors.tolist() == [list(token.values) for token in output.tokens]
        assert found["tokens"][rows].tolist() == [token.token for token in output.tokens]
        spans = [[token.start, token.end] for token in output.tokens]
        assert found["spans"][rows, 1:].tolist() == spans


def test_sparse_vectors_without_their_tokens(doors: Doors) -> None:
    request = infer_request(SPARSE, {"max_active_dims": 1}, text_input=TEXTS)
    request.outputs.add(name="values")
    request.outputs.add(name="scores")  # of its other task
    assert outputs_of(doors.oip.ModelInfer(request)).keys() == {"values"}


@both_doors
@pytest.mark.parametrize("model", ["judge", SPARSE, MULTI_VECTOR])
def test_scores_of_passages(doors: Doors, door: Door, model: str) -> None:
    passages = ["a name", "a city", "a river in paris"]
    ranked = doors.ours.rerank(model, "paris", passages).outputs
    found = door(doors, model, {}, query=["paris"], passages=passages)
    expected = np.zeros(3, np.float32)
    for output in ranked:
        expected[output.index] = output.score
    assert found["scores"].astype(np.float32).tolist() == expected.tolist()


@both_doors
def test_labels(doors: Doors, door: Door) -> None:
    expected = doors.ours.classify("sorter", TEXTS, top_k=2).outputs
    found = door(doors, "sorter", {"top_k": 2}, text_input=TEXTS)
    assert found["labels"].tolist() == [[one.label for one in x.labels] for x in expected]
    scores = np.array([[one.score for one in x.labels] for x in expected], np.float32)
    assert found["scores"].astype(np.float32).tolist() == scores.tolist()


@both_doors
def test_labels_of_the_request(doors: Doors, door: Door) -> None:
    labels = ["politics", "an animal", "music"]
    options = {"multi_label": True, "top_k": 2, "hypothesis_template": "It is {}."}
    ours: Any = doors.ours.classify
    expected = ours("entailer", TEXTS, candidate_labels=labels, **options).outputs
    found = door(doors, "entailer", options, text_input=TEXTS, candidate_labels=labels)
    assert found["labels"].tolist() == [[one.label for one in x.labels] for x in expected]
    scores = np.array([[one.score for one in x.labels] for x in expected], np.float32)
    assert found["scores"].astype(np.float32).tolist() == scores.tolist()


def test_labels_of_the_request_are_named(doors: Doors) -> None:
    for model, labels, field in (
        ("entailer", ["a", " "], "candidate_labels[1]: is empty"),
        ("sorter", ["a"], "candidate_labels: need a model"),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            by_grpc(doors, model, {}, text_input=TEXTS, candidate_labels=labels)
        assert str(caught.value.details()).startswith(field)


@both_doors
def test_entities(doors: Doors, door: Door) -> None:
    expected = [
        (index, one)
        for index, output in enumerate(doors.ours.tag("tagger", TEXTS).outputs)
        for one in output.entities
    ]
    found = door(doors, "tagger", {}, text_input=TEXTS)
    assert expected
    assert found["labels"].tolist() == [one.label for _, one in expected]
    assert found["entities"].tolist() == [one.text for _, one in expected]
    assert found["spans"].tolist() == [[index, one.start, one.end] for index, one in expected]


@both_doors
def test_corrections(doors: Doors, door: Door) -> None:
    texts = ["they have it", "no mistake", "on sunday they have"]
    expected = doors.ours.correct("corrector", texts).outputs
    edits = [(index, edit) for index, output in enumerate(expected) for edit in output.edits]
    assert len(edits) == 3
    found = door(doors, "corrector", {}, text_input=texts)
    assert found.keys() == {"text_output"}
    assert found["text_output"].tolist() == [output.text for output in expected]
    found = door(doors, "corrector", {"max_iterations": 1, "min_score": 1.0}, text_input=texts)
    assert found["text_output"].tolist() == texts


@both_doors
def test_masks(doors: Doors, door: Door) -> None:
    texts = ["angela [MASK] met", "[MASK] obama [MASK]"]
    masks = [
        mask for x in doors.ours.fill_mask("filler", texts, top_k=3).outputs for mask in x.masks
    ]
    found = door(doors, "filler", {"top_k": 3}, text_input=texts)
    assert found["token_ids"].tolist() == [[one.token_id for one in x.candidates] for x in masks]
    assert found["tokens"].tolist() == [[one.text for one in x.candidates] for x in masks]
    assert found["spans"].tolist() == [
        [index, mask.start, mask.end] for index, mask in zip((0, 1, 1), masks, strict=True)
    ]


@both_doors
def test_answers(doors: Doors, door: Door) -> None:
    question, text = "who", "angela merkel met barack obama"
    expected = doors.ours.answer("answerer", [Question(question, text)], top_k=2).outputs[0].spans
    found = door(doors, "answerer", {"top_k": 2}, question=[question], context=[text])
    assert found["answers"].tolist() == [span.text for span in expected]
    assert found["spans"].tolist() == [[0, span.start, span.end] for span in expected]


@both_doors
def test_log_probabilities(doors: Doors, door: Door) -> None:
    pairs = [("1", "2,"), ("12", "3")]
    expected = doors.ours.score("tiny-decoder", pairs).outputs
    contexts, targets = zip(*pairs, strict=True)
    found = door(doors, "tiny-decoder", {}, context=list(contexts), target=list(targets))
    assert found["num_tokens"].tolist() == [output.num_tokens for output in expected]
    assert found["scores"].astype(np.float32).tolist() == [
        np.float32(output.score) for output in expected
    ]


STATUSES = {grpc.StatusCode.INVALID_ARGUMENT: 400, grpc.StatusCode.NOT_FOUND: 404}


@pytest.mark.parametrize(
    ("ours", "model", "parameters", "texts", "field"),
    [
        ("generate", "nobody", {}, ["1"], ""),
        ("generate", "tiny-decoder", {"temperature": -1.0}, ["1"], "parameters.temperature"),
        ("generate", "tiny-decoder", {"max_new_tokens": 0}, ["1"], "parameters.max_new_tokens"),
        ("generate", "tiny-decoder", {"top_p": 2.0}, ["1"], "parameters.top_p"),
        ("generate", "tiny-decoder", {}, ["1", ""], "text_input[1]"),
        ("generate", "tiny-decoder", {"num_hypotheses": 3}, ["1"], "parameters.num_hypotheses"),
        ("generate", "tiny-decoder", {}, ["1"] * 9999, "text_input"),
        ("embed", "embedder", {"dimensions": 999}, ["1"], "parameters.dimensions"),
        ("embed", "embedder", {}, ["many words " * 40], "text_input[0]"),
        ("embed", SPARSE, {"max_active_dims": 1025}, ["1"], "parameters.max_active_dims"),
        ("embed", "embedder", {"max_active_dims": 1}, ["1"], "parameters.max_active_dims"),
        (
            "embed",
            "embedder",
            {"input_type": "query", "prompt": "a"},
            ["1"],
            "parameters.input_type",
        ),
        ("translate", "dates", {"target_language": "xx"}, ["1"], "parameters.target_language"),
    ],
)
def test_errors(
    doors: Doors, ours: str, model: str, parameters: dict[str, Any], texts: list[str], field: str
) -> None:
    with pytest.raises(TriuneError) as expected:
        getattr(doors.ours, ours)(model, texts, **parameters)
    with pytest.raises(grpc.RpcError) as by_oip:
        by_grpc(doors, model, parameters, text_input=texts)
    with pytest.raises(urllib.error.HTTPError) as by_json:
        by_http(doors, model, parameters, text_input=texts)
    assert by_oip.value.code() == expected.value.code
    assert str(by_oip.value.details()).startswith(field)
    assert by_json.value.code == STATUSES[expected.value.code]
    assert json.load(by_json.value) == {"error": str(by_oip.value.details())}
