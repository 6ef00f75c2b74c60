"""How close outputs are to those of fp32."""

import numpy as np
import pytest

from loadtest.compare import fidelity
from loadtest.peers.scoring import score, score_all
from loadtest.prompts import questions, sentences


def test_scores_are_compared_token_by_token() -> None:
    reference = {"logprobs": [[-1.0, -2.0], [-3.0]], "top": [[5, 6], [7]]}
    found = {"logprobs": [[-1.0, -2.0], [-3.6]], "top": [[5, 9], [7]]}
    assert fidelity.of_scores(reference, reference) == {"top_1": 1.0, "rms_nats": 0.0}
    compared = fidelity.of_scores(found, reference)
    assert compared == pytest.approx({"top_1": 2 / 3, "rms_nats": (0.36 / 3) ** 0.5})


def test_vectors_are_compared_by_their_cosines() -> None:
    found = fidelity.of_vectors([[2.0, 0.0], [1.0, 1.0]], [[1.0, 0.0], [1.0, 0.0]])
    assert found["min_cosine"] == pytest.approx(0.5**0.5)
    assert found["mean_cosine"] == pytest.approx((1 + 0.5**0.5) / 2)


def test_chrf_is_that_of_sacrebleu() -> None:
    found = [
        "Como posso ferver um ovo?",
        "Qual é a capital da Austrália",
        "Olá",
        " dois  gatos pretos dormem no sofá.",
    ]
    reference = [
        "Como eu posso cozinhar um ovo?",
        "Qual é a capital da Austrália?",
        "Oi",
        "Dois gatos pretos dormem no sofá.",
    ]
    # sacrebleu 2.6.0: corpus_chrf(found, [reference]).score
    assert fidelity.chrf(found, reference) == pytest.approx(77.99890190875199)
    assert fidelity.chrf(["the cat sat"], ["the cat sat on the mat"]) == pytest.approx(49.593484)
    assert fidelity.chrf(["x"], ["yyy"]) == 0.0
    assert fidelity.of_texts(found, reference)["identical"] == 0.0
    assert fidelity.of_texts(reference, reference) == {"chrf": 100.0, "identical": 1.0}


def test_a_description_names_what_was_measured() -> None:
    assert fidelity.describe({"rms_nats": 0.0712, "top_1": 0.9}) == "top-1 0.900, rms 0.071"
    assert fidelity.describe({"chrf": 98.7, "identical": 0.893}) == "chrF 98.7, 89% identical"
    assert fidelity.describe({}) == "–"


def test_given_tokens_are_scored_after_those_before_them() -> None:
    logits = np.log([[0.5, 0.25, 0.25], [0.1, 0.6, 0.3], [0.2, 0.2, 0.6]])
    scored = score(logits + 7, [0, 2, 1], 1)
    assert scored["top"] == [0, 1]
    assert np.exp(scored["logprobs"]) == pytest.approx([0.25, 0.6])
    message = {"inputs": [[0, 2, 1], [0, 1]], "starts": [2, 1]}
    rows = score_all(message, lambda ids: logits[: len(ids)])
    assert rows["top"] == [[1], [0]]


def test_the_texts_that_we_ship_are_distinct() -> None:
    assert len(set(sentences())) == len(sentences()) == 200
    assert len(set(questions())) == 40
