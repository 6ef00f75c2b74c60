"""The commands of the README, on the default models."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
Run = Callable[..., str]


@pytest.fixture
def run(default_models: str) -> Run:
    def run(*arguments: str) -> str:
        ran = subprocess.run(
            [sys.executable, "-m", "client", "--target", default_models, *arguments],
            cwd=ROOT,
            env={key: value for key, value in os.environ.items() if key != "TRIUNE_TARGET"},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert (ran.returncode, ran.stderr) == (0, "")
        return ran.stdout

    return run


def test_a_chat_model_answers_a_user_message(run: Run) -> None:
    answer = run("generate", "Why is the sky blue?", "--max-new-tokens", "80")
    # int8 rounding, and so the wording, depends on the processor.
    assert "light" in answer
    assert any(word in answer for word in ("scatter", "absorb", "wavelength"))


def test_each_text_is_a_conversation_of_its_own(run: Run) -> None:
    flags = ["--max-new-tokens", "8", "--json"]
    both = json.loads(run("generate", "Say hello.", "Count to three.", *flags))
    first = json.loads(run("generate", "Say hello.", *flags))
    second = json.loads(run("generate", "Count to three.", *flags))
    assert both["outputs"] == first["outputs"] + second["outputs"]
    assert both["usage"]["input_tokens"] == sum(
        row["usage"]["input_tokens"] for row in (first, second)
    )


def test_a_system_message_and_raw_text_change_the_prompt(run: Run) -> None:
    flags = ["Hello", "--max-new-tokens", "1", "--json"]
    plain, system, raw = (
        json.loads(run("generate", *flags, *more))["usage"]["input_tokens"]
        for more in ([], ["--system", "You are a pirate who only speaks in rhymes."], ["--raw"])
    )
    # The template has a default system message, which the given one replaces.
    assert raw == 1
    assert raw < plain
    assert system not in (raw, plain)


def test_translate(run: Run) -> None:
    text = run("translate", "--model", "en-pt", "The children were playing in the garden.")
    assert text.startswith("As crianças")
    assert "jardim" in text


def test_correct(run: Run) -> None:
    texts = ["She have went to there house", "It is time to start."]
    assert run("correct", *texts) == "She has gone to their house\nIt is time to start.\n"
    first, second = json.loads(run("correct", *texts, "--json"))["outputs"]
    assert [edit["original"] for edit in first["edits"]] == ["have", "went", "there"]
    assert (second["edits"], second["is_final"]) == ([], True)


def test_each_encoder_call_has_a_model(run: Run) -> None:
    tasks = {
        task for model in json.loads(run("models", "--json"))["models"] for task in model["tasks"]
    }
    assert {"embed", "rerank", "tag", "fill_mask", "correct", "generate", "translate"} <= tasks


def test_embed(run: Run) -> None:
    row = json.loads(run("embed", "a cat", "a kitten", "a bus", "--json"))
    cat, kitten, bus = row["outputs"]
    assert {len(vector) for vector in row["outputs"]} == {384}
    assert sum(value * value for value in cat) == pytest.approx(1.0, abs=1e-3)

    def cosine(a: list[float], b: list[float]) -> float:
        return sum(x * y for x, y in zip(a, b, strict=True))

    assert cosine(cat, kitten) > cosine(cat, bus)


def test_attention_of_encoders(run: Run) -> None:
    text = "The river bank was muddy."
    found = json.loads(run("attention", "--model", "minilm", "--layer", "5", "--json", text))
    (attention,) = found["attention"]
    assert attention["source_tokens"] == attention["target_tokens"]
    assert attention["source_tokens"][1:6] == ["the", "river", "bank", "was", "muddy"]
    assert [matrix["head"] for matrix in attention["matrices"]] == list(range(12))
    drawn = run("attention", "--model", "en-pt", "--kind", "encoder", "Good morning.")
    assert drawn.startswith("Bom dia.\nmean over layers and heads\n")


def test_compared_translations_are_aligned(run: Run) -> None:
    found = json.loads(run("compare", "--model", "en-pt", "--json", "The cat sleeps."))
    (row,) = found["comparisons"]
    aligned = {each["source"]: each["targets"] for each in row["alignment"]}
    assert aligned == {"The": ["O"], "cat": ["gato"], "sleeps.": ["dorme."]}
    assert row["model_seconds_per_token"] > 0
