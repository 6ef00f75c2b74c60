"""Classification by labels of the request, against the zero-shot pipeline of transformers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from transformers import pipeline

from client.errors import from_rpc_error
from protos.triune.v1 import inference_pb2 as pb
from protos.triune.v1 import inference_pb2_grpc
from server.service.zero_shot import Entailment
from tests import heads
from tests.serving import server_process

TEXTS = ("Angela met Barack in Washington.", "A dog runs.", "Étude 🙂")
LABELS = ("politics", "an animal", "music or {}")


@pytest.fixture(scope="module")
def stub(head_bundles: Path) -> Iterator[Any]:
    with (
        server_process(head_bundles, "--threads", "1") as running,
        grpc.insecure_channel(running.target) as channel,
    ):
        yield inference_pb2_grpc.InferenceServiceStub(channel)


@pytest.fixture(scope="module")
def reference() -> Any:
    model = heads.model("entailer")
    model.config.label2id = {label: id_ for id_, label in model.config.id2label.items()}
    make: Any = pipeline
    return make("zero-shot-classification", model=model, tokenizer=heads.tokenizer())


def classify(
    stub: Any, model: str = "entailer", texts: Any = TEXTS, length: Any = None, **options: Any
) -> list[Any]:
    message = pb.ClassifyOptions(**options)
    request = pb.ClassifyRequest(model=model, inputs=texts, options=message, length=length)
    return list(stub.Classify(request, timeout=60).outputs)


@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("template", [None, "It is about {}!"])
@pytest.mark.parametrize("labels", [LABELS, LABELS[:1]])
def test_scores_match_the_transformers_pipeline(
    stub: Any, reference: Any, multi_label: bool, template: str | None, labels: tuple[str, ...]
) -> None:
    expected = reference(
        list(TEXTS),
        list(labels),
        multi_label=multi_label,
        **({} if template is None else {"hypothesis_template": template}),
    )
    outputs = classify(
        stub, candidate_labels=labels, hypothesis_template=template, multi_label=multi_label
    )
    for text, output, row in zip(TEXTS, outputs, expected, strict=True):
        assert [x.label for x in output.labels] == row["labels"]
        assert [x.score for x in output.labels] == pytest.approx(row["scores"], abs=1e-5)
        hypotheses = [(template or "This example is {}.").replace("{}", x) for x in labels]
        ids = heads.tokenizer()([text] * len(labels), hypotheses)["input_ids"]
        assert output.usage.input_tokens == sum(map(len, ids))


def test_returns_the_best_labels(stub: Any) -> None:
    whole = classify(stub, candidate_labels=LABELS)
    best = classify(stub, candidate_labels=LABELS, top_k=2)
    assert [list(x.labels) for x in best] == [list(x.labels)[:2] for x in whole]


def test_errors_name_the_field(stub: Any) -> None:
    def field(*args: Any, **options: Any) -> str:
        with pytest.raises(grpc.RpcError) as caught:
            classify(stub, *args, **options)
        error = from_rpc_error(caught.value)
        assert error.code == grpc.StatusCode.INVALID_ARGUMENT
        return error.violations[0].field

    assert field("sorter", candidate_labels=LABELS) == "options.candidate_labels"
    assert field(candidate_labels=["a", " "]) == "options.candidate_labels[1]"
    assert field(candidate_labels=["a"] * 101) == "options.candidate_labels"
    assert field(texts=["a"] * 41, candidate_labels=["a"] * 100) == "options.candidate_labels"
    template = {"hypothesis_template": "It is this."}
    assert field(candidate_labels=LABELS, **template) == "options.hypothesis_template"
    twice = {"hypothesis_template": "{} is {}."}
    assert field(candidate_labels=LABELS, **twice) == "options.hypothesis_template"
    assert field(**template) == "options.hypothesis_template"
    assert field(multi_label=True) == "options.multi_label"
    given = {"score_function": pb.SCORE_FUNCTION_SIGMOID}
    assert field(candidate_labels=LABELS, **given) == "options.score_function"
    assert field(texts=["a", "word " * 60], candidate_labels=LABELS) == "inputs[1]"


@pytest.mark.parametrize(
    ("labels", "entailed", "contradicted"),
    [
        (("CONTRADICTION", "NEUTRAL", "ENTAILMENT"), 2, 0),
        (("entailment", "neutral", "contradiction"), 0, 2),
        (("entailment", "not_entailment"), 0, 1),
        (("neutral", "entailment", "contradiction"), 1, 2),
    ],
)
def test_finds_entailment_and_its_opposite(
    labels: tuple[str, ...], entailed: int, contradicted: int
) -> None:
    found = Entailment.of("nli", labels)
    assert (found.entailed, found.contradicted) == (entailed, contradicted)
    logits = np.zeros((2, len(labels)), np.float32)
    logits[0, entailed], logits[1, contradicted] = 3, 3
    high, low = 1 / (1 + np.exp(-3)), 1 / (1 + np.exp(3))
    scores = found.scores(logits, multi_label=True)
    np.testing.assert_allclose(scores, [high, low], rtol=1e-6)
    np.testing.assert_allclose(found.scores(logits, multi_label=False), [high, low], rtol=1e-6)
