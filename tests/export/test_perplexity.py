"""Perplexity of exported graphs against the eager module."""

import dataclasses
import math
import shutil
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from export.apply_scheme import apply_scheme
from export.evaluation_texts import SENTENCES
from export.perplexity import EvaluationSet, measure_perplexity
from export.precision_schemes import scheme_for
from model.bundle import Device, Precision
from model.kernels import Step
from model.transformer import from_weights
from tests.architectures import ARCHITECTURES, checkpoint
from tests.export.exported import Exported


def eager_perplexity(name: str, evaluation: EvaluationSet) -> float:
    source = checkpoint(name)
    model = from_weights(source.config, source.weights)
    losses = []
    no_sources: list[list[int] | None] = [None for _ in evaluation.rows]
    sources = no_sources if evaluation.sources is None else [*evaluation.sources]
    with torch.inference_mode():
        for row, source_row in zip(evaluation.rows, sources, strict=True):
            states, source_lengths = None, None
            if source_row is not None:
                source_lengths = torch.tensor([len(source_row)], dtype=torch.int32)
                states = model.encode_source(torch.tensor([source_row]), source_lengths)
            ids, step = (
                torch.tensor([row[:-1]]),
                Step.whole(torch.tensor([len(row) - 1]), source_lengths),
            )
            logits = model.logits(model.decode(ids, step, states).hidden)[0]
            losses.append(functional.cross_entropy(logits, torch.tensor(row[1:]), reduction="none"))
    return math.exp(float(torch.cat(losses).mean()))


@pytest.mark.parametrize("exported", ["llama", "ssru"], indirect=True)
def test_perplexity_matches_the_eager_module(exported: Exported, tmp_path: Path) -> None:
    evaluation = EvaluationSet.of(checkpoint(exported.name))
    assert evaluation is not None
    measured = measure_perplexity(evaluation, exported.directory, exported.graphs)
    assert measured.num_tokens == sum(len(row) - 1 for row in evaluation.rows) > 100
    expected = eager_perplexity(exported.name, evaluation)
    assert measured.perplexity == pytest.approx(expected, rel=1e-5)
    directory = tmp_path / "graphs"
    shutil.copytree(exported.directory, directory)
    scheme = scheme_for(Precision.INT4, Device.CPU, ARCHITECTURES[exported.name].kind)
    graphs = apply_scheme(ARCHITECTURES[exported.name], scheme, exported.graphs, directory)
    quantized = measure_perplexity(evaluation, directory, graphs).perplexity
    assert 1e-5 < abs(quantized / expected - 1) < 0.2


def test_evaluation_set_of_each_model_kind() -> None:
    assert EvaluationSet.of(checkpoint("bert")) is None
    source = checkpoint("ssru")
    translation = EvaluationSet.of(source)
    assert translation is not None
    assert translation.sources is not None
    sources = [row for row in translation.sources if isinstance(row, list)]
    assert [row[1:] for row in translation.rows] == [
        s[: len(r) - 1] for s, r in zip(sources, translation.rows, strict=True)
    ]
    assert {row[0] for row in translation.rows} == {source.special_tokens.decoder_start}
    other = EvaluationSet.of(dataclasses.replace(source, target_language="pt"))
    assert other is not None
    assert other.sources == translation.sources
    assert other.rows != translation.rows
    assert len({len(sentences) for sentences in SENTENCES.values()}) == 1
