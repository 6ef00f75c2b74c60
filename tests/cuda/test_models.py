"""Kinds of models on CUDA: outputs equal those of the same models in fp32 on a CPU."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from transformers import (
    BloomConfig,
    BloomModel,
    DebertaV2Config,
    DebertaV2Model,
    EuroBertConfig,
    EuroBertModel,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    MptConfig,
    MptForCausalLM,
    RoFormerConfig,
    RoFormerModel,
    T5Config,
    T5ForConditionalGeneration,
)

from export.bundle_writer import write_bundle
from export.checkpoint import Checkpoint
from model.bundle import Device, Precision
from tests import architectures, caption_models, image_models, speech_models
from tests.cuda.conftest import Probe
from tests.cuda.probe import Output, Reply, Request
from tests.cuda.test_dry_runs import assert_clean, captures
from tests.families import (
    encoders,
    gated,
    test_bloom,
    test_deberta,
    test_eurobert,
    test_gpt_neox,
    test_mpt,
    test_t5,
)
from tests.families.harness import imported

pytestmark = pytest.mark.slow

NUM_JOBS = 12  # more than the step graphs for few rows take
# Tolerances in fp16 of log-probabilities, of 1 - cosine, and of attention weights.
LOGPROB, COSINE, WEIGHT = 0.02, 1e-4, 0.003
SETTINGS = {
    "max_length": 32,
    "max_batched_tokens": 160,
    "max_padded_tokens": 128,
    "num_slots": 40,
}

Open = Callable[[Path], AbstractContextManager[Checkpoint]]
"""Makes a model; takes a folder for its files."""


def of(model_class: Any, config_class: Any, *fields: dict[str, Any], **others: Any) -> Open:
    """A small ``transformers`` model with random weights."""
    merged: dict[str, Any] = {}
    for each in (*fields, others):
        merged |= each
    return lambda _: imported(model_class(config_class(**merged)))


def roformer(_: Path) -> AbstractContextManager[Checkpoint]:
    model = RoFormerModel(RoFormerConfig(**encoders.SMALL))
    return imported(encoders.with_fixed_sinusoids(model))


NOT_REPLAYED = "runs are not recorded, as one may not be replayed: the run copies from the host"
GENERATION: dict[str, Open] = {
    "whisper": lambda folder: nullcontext(speech_models.checkpoint(folder)),
    "captioner": lambda _: nullcontext(caption_models.checkpoint(strength=1.0)),
    "gru": lambda _: nullcontext(architectures.checkpoint("gru-fixed")),
    "lstm": lambda _: nullcontext(architectures.checkpoint("lstm-general")),
    "t5": of(T5ForConditionalGeneration, T5Config, test_t5.SMALL),
    "mpt": of(MptForCausalLM, MptConfig, test_mpt.SMALL),
    "gpt-neox": of(GPTNeoXForCausalLM, GPTNeoXConfig, test_gpt_neox.SMALL),
    "gemma-2": of(Gemma2ForCausalLM, Gemma2Config, gated.SMALL, head_dim=32),
}
TEXTS: dict[str, Open] = {
    "eurobert": of(
        *(EuroBertModel, EuroBertConfig, encoders.SMALL, test_eurobert.IDS),
        num_key_value_heads=2,
    ),
    "roformer": roformer,
    "bloom": of(BloomModel, BloomConfig, test_bloom.SMALL),
    "deberta": of(DebertaV2Model, DebertaV2Config, encoders.SMALL, test_deberta.V3),
}
IMAGES: dict[str, Open] = {
    "vit": lambda _: nullcontext(image_models.CHECKPOINTS["vit"]()),
    "vilbert": lambda _: nullcontext(image_models.CHECKPOINTS["vilbert"]()),
}


class Replies(NamedTuple):
    """The replies to the same jobs on both devices."""

    cuda: Reply
    cpu: Reply


Serve = Callable[..., Replies]


@pytest.fixture
def serve(run_probe: Probe, tmp_path: Path) -> Serve:
    """Exports a model for a GPU in fp16 and for a CPU in fp32, and serves both."""

    def run(make: Open, *jobs: str, has_library: bool = True) -> Replies:
        found = []
        for device, precision in ((Device.CUDA, Precision.FP16), (Device.CPU, Precision.FP32)):
            with make(tmp_path) as checkpoint:
                bundle = write_bundle(
                    *(checkpoint, tmp_path / device),
                    precision=precision,
                    device=device,
                    accept_loss=True,
                )
            config = {**SETTINGS, "devices": (str(device),)}
            request = Request(str(bundle), config, jobs, NUM_JOBS, computes=True)
            found.append(run_probe(replace(request, has_library=has_library)))
        return Replies(*found)

    return run


def assert_same(replies: Replies) -> None:
    """Checks that both outputs are the same, and that no kernel was missing."""
    for calls in (replies.cuda.loaded, replies.cuda.prepared, *replies.cuda.ran.values()):
        assert [about for name, *about in calls if name in ("does nothing", "failure")] == []
    assert replies.cuda.failures == replies.cpu.failures
    for kind, found in replies.cuda.outputs.items():
        for output, expected in zip(found, replies.cpu.outputs[kind], strict=True):
            assert_tokens(output, expected)
            assert_close(output.attention, expected.attention, WEIGHT)
            assert_close(output.scores, expected.scores, LOGPROB)
            assert len(output.vector) == len(expected.vector)
            if expected.vector:
                assert 1 - cosine(output.vector, expected.vector) <= COSINE


def assert_tokens(output: Output, expected: Output) -> None:
    """Tokens may differ only from a token on whose two best candidates are about equally likely."""
    count = len(expected.logprobs)
    for index in range(count):
        if output.tokens[index] != expected.tokens[index]:
            assert expected.leads[index] <= LOGPROB
            count = index
            break
    assert_close(output.logprobs[:count], expected.logprobs[:count], LOGPROB)


def assert_close(found: Sequence[float], expected: Sequence[float], tolerance: float) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    return float(np.dot(one, other) / np.linalg.norm(one) / np.linalg.norm(other))


@pytest.mark.parametrize("name", GENERATION)
def test_generation(serve: Serve, name: str) -> None:
    """Speech begins in fp32. The biases of T5 and MPT span positions that the host counts."""
    is_recurrent = name in ("gru", "lstm")  # recurrent encoders are not recorded
    attention = () if is_recurrent else ("attention",)
    replies = serve(GENERATION[name], "logprobs", "beams", "scores", *attention)
    warnings = [NOT_REPLAYED] * is_recurrent
    assert_clean(replace(replies.cuda, warnings=replies.cuda.warnings[len(warnings) :]))
    assert replies.cuda.warnings == warnings
    num_captures = len(captures(replies.cuda.prepared))
    assert num_captures - len(warnings) == replies.cuda.num_graphs > 0
    assert_same(replies)


@pytest.mark.parametrize("name", ["llama-check", "bart-check"])
def test_jobs_that_arrive_apart(run_probe: Probe, bundle_of: Callable[..., str], name: str) -> None:
    """Prompts and sources are copied to slots while a step that started ahead is running."""
    request = Request(bundle_of(name), SETTINGS, ("greedy",), NUM_JOBS, computes=True)
    apart = run_probe(replace(request, steps_between=1))
    assert_clean(apart)
    assert [call for call in apart.ran["greedy"] if call[0] == "failure"] == []
    together = run_probe(request)
    assert [each.tokens for each in apart.outputs["greedy"]] == [
        each.tokens for each in together.outputs["greedy"]
    ]


@pytest.mark.parametrize("name", TEXTS)
def test_texts(serve: Serve, name: str) -> None:
    """Texts of different lengths: tokens do not attend to padding."""
    replies = serve(TEXTS[name], "greedy", "attention")
    warnings = replies.cuda.warnings
    if name == "deberta":  # distances are computed on the host
        assert warnings == [NOT_REPLAYED]
    else:
        assert_clean(replies.cuda)
    assert (replies.cuda.num_graphs > 0) == (not warnings)
    assert_same(replies)


def test_without_our_library(serve: Serve) -> None:
    replies = serve(TEXTS["eurobert"], "greedy", has_library=False)
    assert replies.cuda.failures == {"greedy": []}
    assert_same(replies)


@pytest.mark.parametrize("name", IMAGES)
def test_images(serve: Serve, name: str) -> None:
    """Pixels are bytes; the first product converts them to 16-bit floats."""
    replies = serve(IMAGES[name], "greedy")
    assert_clean(replies.cuda)
    assert_same(replies)
