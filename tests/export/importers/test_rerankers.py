"""Language models that rerank against transformers: head, template, and what is refused."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForSequenceClassification

from export.bundle_writer import write_bundle
from export.checkpoint import Checkpoint
from export.errors import SourceError, UnsupportedError
from export.fidelity.subject import GraphFolder, Subject
from export.graphs import export_graphs
from export.quality.model import Model, encode, ids_of
from export.sources import load_checkpoint
from model.bundle import Precision, ScoreFunction, Task
from model.bundle_files import read_manifest, read_parity
from model.config import Kind
from tests import rerankers
from tests.export.importers.support import edit_json, pooled, randomise, save
from tests.families.gated import SMALL


def logits(checkpoint: Checkpoint) -> list[float]:
    """Of :data:`tests.rerankers.PAIRS`."""
    assert checkpoint.pair_template is not None
    library = Tokenizer.from_str(checkpoint.tokenizer_json)
    found = []
    for pair in rerankers.PAIRS:
        text = checkpoint.pair_template.render(*pair)
        ids = torch.tensor([library.encode(text, add_special_tokens=False).ids])
        lengths = torch.tensor([ids.shape[1]], dtype=torch.int32)
        found.append(pooled(checkpoint, ids, lengths).item())
    return found


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("template", [rerankers.TEMPLATE, rerankers.STRUCTURED])
def test_scores_match_transformers(tmp_path: Path, template: str, *, tied: bool) -> None:
    model = rerankers.save(tmp_path, template, tie_word_embeddings=tied)
    checkpoint = load_checkpoint(str(tmp_path))
    expected = rerankers.scores(model, tmp_path, template=template)
    assert logits(checkpoint) == pytest.approx(expected, abs=1e-4)
    assert checkpoint.config.kind == Kind.ENCODER
    assert checkpoint.tasks == (Task.CLASSIFY, Task.RERANK)
    assert checkpoint.score_function == ScoreFunction.SIGMOID
    assert checkpoint.chat_template is None
    assert checkpoint.weights["head.output.weight"].shape == (64, 1)


def test_the_default_prompt_is_the_instruction(tmp_path: Path) -> None:
    model = rerankers.save(tmp_path)
    edit_json(
        tmp_path / "config_sentence_transformers.json",
        prompts={"law": "Find the law", "other": "Find something"},
        default_prompt_name="law",
        activation_fn="torch.nn.modules.linear.Identity",
    )
    checkpoint = load_checkpoint(str(tmp_path))
    expected = rerankers.scores(model, tmp_path, "Find the law")
    assert logits(checkpoint) == pytest.approx(expected, abs=1e-4)
    assert checkpoint.score_function == ScoreFunction.IDENTITY


def test_the_score_may_be_the_logit_of_one_token(tmp_path: Path) -> None:
    model = rerankers.save(tmp_path)
    edit_json(tmp_path / "1_LogitScore" / "config.json", false_token_id=None)
    expected = rerankers.scores(model, tmp_path, has_no=False)
    assert logits(load_checkpoint(str(tmp_path))) == pytest.approx(expected, abs=1e-4)


def test_quality_is_measured_in_the_template(tmp_path: Path) -> None:
    model = rerankers.save(tmp_path / "source")
    checkpoint = load_checkpoint(str(tmp_path / "source"))
    graphs = GraphFolder(tmp_path, export_graphs(checkpoint.config, checkpoint.weights, tmp_path))
    measured = Model(Subject.of(checkpoint), checkpoint.labels, 1.0, None, graphs)
    rows = [ids_of(measured.subject.encode_pair(*pair)) for pair in rerankers.PAIRS]
    actual = [float(output[0]) for output in encode(measured, rows)]
    assert actual == pytest.approx(rerankers.scores(model, tmp_path / "source"), abs=1e-4)


def test_the_bundle_has_the_template_and_no_output_matrix(tmp_path: Path) -> None:
    rerankers.save(tmp_path / "source", tie_word_embeddings=False)
    checkpoint = load_checkpoint(str(tmp_path / "source"))
    for precision in (Precision.FP32, Precision.INT8, Precision.INT4):
        path = write_bundle(checkpoint, tmp_path, version=precision, precision=precision)
        manifest = read_manifest(path)
        assert manifest.pair_template == checkpoint.pair_template
        assert not manifest.graphs["encode"].states
        assert read_parity(path).max_absolute_error < 1e-4
        if precision != Precision.FP32:
            fidelity = read_parity(path).fidelity
            assert fidelity is not None
            assert fidelity.top1_agreement is not None
    num_parameters = sum(weight.numel() for weight in checkpoint.weights.values())
    assert manifest.dimensions.num_parameters == num_parameters
    assert not any(260 in weight.shape[1:] for weight in checkpoint.weights.values())


def _reversed(folder: Path) -> None:
    template = "{{ messages[1].content }} {{ messages[0].content }}"
    (folder / "chat_template.jinja").write_text(template)


def _trimmed(folder: Path) -> None:
    template = "{{ messages[0].content | trim }} {{ messages[1].content | trim }}"
    (folder / "chat_template.jinja").write_text(template)


def _raising(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ raise_exception('no such role') }}")


def _another_module(folder: Path) -> None:
    rows = '[{"type": "a.Transformer", "path": ""}, {"type": "a.Dense", "path": "1_Dense"}, '
    (folder / "modules.json").write_text(rows + '{"type": "a.LogitScore", "path": "1_LogitScore"}]')


def _beyond(folder: Path) -> None:
    edit_json(folder / "1_LogitScore" / "config.json", true_token_id=260)


def _plain_pairs(folder: Path) -> None:
    text = {"text": {"method": "forward", "method_output_name": "logits"}}
    edit_json(folder / "sentence_bert_config.json", modality_config=text)
    edit_json(
        folder / "config_sentence_transformers.json",
        prompts={"law": "Find the law"},
        default_prompt_name="law",
    )


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (_reversed, UnsupportedError, "the query, and then the document"),
        (_trimmed, UnsupportedError, "once each and unchanged"),
        (_raising, UnsupportedError, "no such role"),
        (_another_module, UnsupportedError, "Transformer, Dense, LogitScore; supported"),
        (_beyond, SourceError, "true_token_id is 260, not in 0 to 259"),
        (_plain_pairs, UnsupportedError, "a prompt without a chat template"),
    ],
)
def test_what_is_not_supported_is_refused(
    tmp_path: Path, change: Callable[[Path], None], error: type[Exception], message: str
) -> None:
    rerankers.save(tmp_path)
    change(tmp_path)
    with pytest.raises(error, match=message):
        load_checkpoint(str(tmp_path))


@pytest.mark.parametrize(
    ("template", "is_of_pairs"),
    [("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", True), ("Hi!", False)],
)
def test_a_classifier_may_have_a_template_of_pairs(
    tmp_path: Path, template: str, *, is_of_pairs: bool
) -> None:
    model = randomise(LlamaForSequenceClassification(LlamaConfig(**SMALL | {"num_labels": 1})))
    save(model, tmp_path)
    (tmp_path / "chat_template.jinja").write_text(template)
    found = load_checkpoint(str(tmp_path)).pair_template
    assert (found is not None) == is_of_pairs
    if found is not None:
        assert found.render("a", "b") == "query: a\ndocument: b\n"


def test_without_modules_it_generates_text(tmp_path: Path) -> None:
    rerankers.save(tmp_path)
    (tmp_path / "modules.json").unlink()
    assert load_checkpoint(str(tmp_path)).tasks == (Task.GENERATE,)
