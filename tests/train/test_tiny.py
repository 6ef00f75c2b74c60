"""From a recipe to answers: trained, exported, served. Slow, as each recipe trains.

Held-out cases of the synthetic task, over gRPC. An encoder and a decoder train by the command line,
are killed, and go on; they train again without a kill.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from client.encoder_types import Question
from client.sync import Client
from export.__main__ import app as export
from export.importers.native import read_held_out, read_native_config
from model.bundle_files import read_quality
from model.examples import (
    AnswerExample,
    ClassificationExample,
    MaskedExample,
    RankingExample,
    TaggingExample,
    TextExample,
    TranslationExample,
)
from tests.serving import server_process
from tests.train.support import RECIPES, train, train_and_kill
from train.run import run_training

NAMES = sorted(path.stem for path in RECIPES.glob("tiny-*.toml"))
KILLED = ("tiny-majority",)
NUM_CASES = 200
# Steps after which the first process is killed: about half of the recipe.
KILLED_AFTER = 100


@pytest.fixture(scope="module", params=NAMES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained; some in two parts with a kill between them."""
    name: str = request.param
    out = tmp_path_factory.mktemp("training") / name
    recipe = RECIPES / f"{name}.toml"
    if name in KILLED:
        train_and_kill(recipe, out, KILLED_AFTER)
        assert "resumed at step" in train(recipe, out)
        return out
    return run_training(recipe, out)


@pytest.fixture(scope="module")
def bundle(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model in fp32."""
    folder = tmp_path_factory.mktemp("bundles") / checkpoint.name
    arguments = [str(checkpoint), "--out", str(folder), "--precision", "fp32"]
    ran = CliRunner().invoke(export, arguments)
    assert ran.exit_code == 0, ran.output
    return folder


@pytest.fixture(scope="module")
def client(bundle: Path) -> Iterator[Client]:
    with server_process(bundle.parent) as running, Client(running.target) as client:
        assert [model.name for model in client.list_models()] == [bundle.name]
        yield client


@pytest.mark.parametrize("checkpoint", KILLED, indirect=True)
def test_the_result_is_that_of_a_training_without_a_kill(checkpoint: Path, tmp_path: Path) -> None:
    train(RECIPES / f"{checkpoint.name}.toml", tmp_path / "whole")
    folders = (tmp_path / "whole", checkpoint)
    expected, actual = (load_file(str(folder / "model.safetensors")) for folder in folders)
    assert all(torch.equal(expected[name], actual[name]) for name in expected)


def _translate(client: Client, model: str, examples: list[TranslationExample]) -> int:
    """Generate answers the same: the recipe names no languages."""
    sources = [example.source for example in examples]
    outputs = client.translate(model, sources).outputs
    generated = client.generate(model, sources).outputs
    assert [output.text for output in generated] == [output.text for output in outputs]
    return sum(o.text == e.target for o, e in zip(outputs, examples, strict=True))


def _generate(client: Client, model: str, examples: list[TextExample]) -> int:
    """Texts after prompts, or about images."""
    images = [example.image for example in examples if isinstance(example.image, bytes)]
    if images:
        outputs = client.generate(model, images=images).outputs
    else:
        outputs = client.generate(model, [example.prompt for example in examples]).outputs
    return sum(o.text == e.text for o, e in zip(outputs, examples, strict=True))


def _classify(client: Client, model: str, examples: list[ClassificationExample]) -> int:
    """Texts, images, or texts with images."""
    images = [example.image for example in examples if isinstance(example.image, bytes)]
    texts = [example.text for example in examples if example.text]
    if images and texts:
        outputs = client.classify(model, pairs=list(zip(texts, images, strict=True))).outputs
    else:
        outputs = client.classify(model, images or texts).outputs
    return sum(o.labels[0].label == e.label for o, e in zip(outputs, examples, strict=True))


def _tag(client: Client, model: str, examples: list[TaggingExample]) -> int:
    outputs = client.tag(model, [example.text for example in examples]).outputs
    found = [{(x.start, x.end, x.label) for x in output.entities} for output in outputs]
    wanted = [{(x.start, x.end, x.label) for x in example.spans} for example in examples]
    return sum(a == b for a, b in zip(found, wanted, strict=True))


def _answer(client: Client, model: str, examples: list[AnswerExample]) -> int:
    questions = [Question(example.question, example.context) for example in examples]
    outputs = client.answer(model, questions).outputs
    wanted = [example.context[example.start : example.end] for example in examples]
    return sum(o.spans[0].text == text for o, text in zip(outputs, wanted, strict=True))


def _fill_mask(client: Client, model: str, examples: list[MaskedExample]) -> int:
    """The second letter of each run."""
    mask = client.get_model(model).mask_token
    words = [example.text.split() for example in examples]
    texts = [" ".join([first, mask, *rest]) for first, _, *rest in words]
    outputs = client.fill_mask(model, texts).outputs
    return sum(
        o.masks[0].candidates[0].text.strip() == run[1]
        for o, run in zip(outputs, words, strict=True)
    )


def _rerank(client: Client, model: str, examples: list[RankingExample]) -> int:
    """The last document is the relevant one."""
    return sum(
        client.rerank(model, e.query, [*e.others, e.relevant]).outputs[0].index == len(e.others)
        for e in examples
    )


ASK: dict[str, Callable[..., int]] = {
    "translate": _translate,
    "generate": _generate,
    "classify": _classify,
    "tag": _tag,
    "answer": _answer,
    "fill_mask": _fill_mask,
    "rerank": _rerank,
    "embed": _rerank,
}


def test_held_out_cases_over_grpc(checkpoint: Path, client: Client) -> None:
    task = read_native_config(checkpoint).tasks[0]
    examples = list(read_held_out(checkpoint / "held_out.jsonl", task, "held out").examples)
    assert len(examples) == NUM_CASES
    correct = ASK[task](client, checkpoint.name, examples)
    assert correct / len(examples) >= 0.99


def test_the_server_reports_the_quality(client: Client, bundle: Path) -> None:
    model = client.get_model(bundle.name)
    (measured,) = model.quality
    also = {"translate": ("generate",), "embed": ("rerank",)}
    assert (measured.task, *also.get(measured.task, ())) == model.tasks
    quality = read_quality(bundle / "1")
    assert quality is not None
    assert measured.metrics == quality.measurements[0].metrics
    best = max(measured.metrics.get(name, 0) for name in ("exact_match", "accuracy", "recall_at_1"))
    assert best >= 0.95
