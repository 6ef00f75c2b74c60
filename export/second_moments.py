"""Measures the second moments of the inputs of linear maps, for calibrated rounding."""

import itertools
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from export.activations import linear_maps, observe_inputs
from export.block_matmul import is_rounded_to_4_bits
from export.blocks import can_have_blocks
from export.calibration_rows import (
    calibration_images,
    calibration_rows,
    calibration_sources,
    with_images,
)
from export.calibration_texts import calibration_texts
from export.checkpoint import Checkpoint
from export.decoding import DecodingInputs, greedy_answers
from export.fidelity.generation import GraphRunner, parts
from export.fidelity.subject import GraphFolder, Subject
from export.gptq import NO_MOMENTS, SecondMoments
from export.precision_schemes import PrecisionScheme, WeightFormat
from export.quantize import OUTPUT, ROUTERS
from export.speech import Source
from model.config import Kind, ModelConfig

MAX_BYTES = 2 << 30  # for all moments: those of Llama models with 1 B parameters have 1.1 GB
MAX_TOKENS = 96  # per answer
BATCH = 16  # sources answered together


def measure_second_moments(
    checkpoint: Checkpoint,
    weights: Mapping[str, Tensor],
    scheme: PrecisionScheme,
    fp32: GraphFolder,
) -> SecondMoments:
    """``X^T X`` for the inputs of each matrix that ``scheme`` rounds to 4-bit blocks.

    Decoders read the fp32 graphs' own greedy answers; decoders without an encoder also read texts,
    and images if they have a vision tower.
    Heads of encoders are not run, so their matrices have no moments.

    Args:
        weights: not smoothed, like those of the graphs ``fp32``.

    Returns:
        ``[inputs, inputs]`` by the matrices' names, for the smallest ones up to :data:`MAX_BYTES`.
        Empty for recurrent models, which mostly read single words; without matrices whose inputs
        are not finite.
    """
    config = checkpoint.config
    if scheme.matrices != WeightFormat.DYNAMIC_INT4 or config.recurrent is not None:
        return NO_MOMENTS
    names = _names_of_smallest(config, weights)
    subject = Subject.of(checkpoint)
    rows, sources = calibration_rows(checkpoint), calibration_sources(checkpoint)
    samples = sources or with_images(checkpoint, rows)
    if not names or not samples:
        return NO_MOMENTS
    sums: dict[str, Tensor] = {}

    def add(name: str, x: Tensor) -> None:
        if name in names:
            flat = x.flatten(0, -2)
            if name not in sums:
                sums[name] = torch.zeros(2 * flat.shape[1:])
            sums[name].addmm_(flat.T, flat)

    targets: list[list[int]] = []
    if subject.kind == Kind.ENCODER_DECODER:
        sources = sources or rows
        targets = _answers(subject, [subject.target_start] * len(sources), sources, fp32)
    elif subject.kind == Kind.DECODER:
        num_steps = max(1, min(MAX_TOKENS, subject.max_positions // 2))
        prompts = subject.prompts(num_steps, calibration_texts("en"))
        answers = _answers(subject, prompts, None, fp32)
        samples = [*rows, *answers, *calibration_images(checkpoint)]
    observe_inputs(config, dict(weights), samples, add, targets)
    return {
        f"{name}.weight": moments.numpy()
        for name, moments in sums.items()
        if moments.isfinite().all()
    }


def _names_of_smallest(config: ModelConfig, weights: Mapping[str, Tensor]) -> set[str]:
    """The linear maps with the smallest moments, up to :data:`MAX_BYTES` in total."""
    by_size = sorted(
        (4 * weights[f"{name}.weight"].shape[0] ** 2, name)
        for name in _rounded_maps(config, weights)
    )
    totals = itertools.accumulate(num_bytes for num_bytes, _ in by_size)
    return {name for total, (_, name) in zip(totals, by_size, strict=True) if total <= MAX_BYTES}


def _rounded_maps(config: ModelConfig, weights: Mapping[str, Tensor]) -> Iterator[str]:
    """The linear maps whose weights are rounded to 4 bits."""
    finer = (*ROUTERS, OUTPUT)
    for name in linear_maps(config):
        weight = weights[f"{name}.weight"]
        if f"{name}.weight".endswith(finer) or not can_have_blocks(weight.shape[0]):
            continue
        if is_rounded_to_4_bits(weight.numpy()):
            yield name


def _answers(
    subject: Subject,
    prompts: list[list[int]],
    sources: Sequence[Source] | None,
    fp32: GraphFolder,
) -> list[list[int]]:
    """The decoder's inputs while it answers greedily: each prompt, and all but the last token."""
    if not prompts:
        return []
    inputs = DecodingInputs(
        prompts=prompts,
        num_steps=max(1, min(MAX_TOKENS, subject.max_positions - max(map(len, prompts)))),
        sources=sources,
        suppressed=subject.special_tokens.suppressed,
    )
    runner, answers = GraphRunner(fp32, inputs, BATCH), []
    for part in parts(inputs, BATCH):
        answers += greedy_answers(runner.prepare(part), part, subject.special_tokens.eos)
    return [[*prompt, *answer[:-1]] for prompt, answer in zip(prompts, answers, strict=True)]
