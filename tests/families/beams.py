"""Beam search through the engine, over exported graphs, against ``generate`` of transformers."""

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from export.checkpoint import Checkpoint
from model.bundle import GraphSpec
from server.engine.cache.slot_tensors import Capacity
from server.engine.decoding.options import Beams, EarlyStopping
from server.engine.generation_worker import GenerationWorker
from server.engine.gpu.sampler_inputs import SUPPRESSED_LOGIT
from server.engine.model_runner import ModelRunner
from server.engine.observer import Unobserved
from server.engine.requests.job import GenerationJob
from server.engine.requests.update import JobUpdate
from server.engine.scheduler import StepLimits
from server.runtime.host_memory import HostMemory
from server.runtime.ort.backend import OrtBackend

EARLY_STOPPING: dict[EarlyStopping, bool | str] = {
    EarlyStopping.HEURISTIC: False,
    EarlyStopping.FIRST: True,
    EarlyStopping.NEVER: "never",
}
NUM_SLOTS = 12
NUM_STEPS = 16
SCORE_TOLERANCE = 1e-4
# Hypotheses with scores this close may swap ranks.
TIE = 2e-5


@dataclass(frozen=True)
class Hypothesis:
    """Generated tokens, up to the first end token, and the score."""

    tokens: tuple[int, ...]
    score: float


def check_beams(
    model: Any,
    checkpoint: Checkpoint,
    directory: Path,
    graphs: dict[str, GraphSpec],
    *,
    eos: int,
    prompts: list[list[int]],
) -> int:
    """Concurrent beam searches with different options equal those of ``model``, one by one.

    Args:
        eos: ends a hypothesis.
        prompts: of a decoder, or the sources of an encoder-decoder.

    Returns:
        number of hypotheses compared
    """
    options_cycle = itertools.cycle(
        [
            Beams(4),
            Beams(2, 0.6, EarlyStopping.FIRST),
            Beams(4, 2.0, EarlyStopping.NEVER),
            Beams(3, 0.0),
        ]
    )
    jobs = []
    for prompt, beams in zip(prompts * 2, options_cycle, strict=False):
        target: tuple[int, ...] = tuple(prompt)
        source: tuple[int, ...] = ()
        if checkpoint.special_tokens.decoder_start is not None:
            target, source = (checkpoint.special_tokens.decoder_start,), tuple(prompt)
        jobs.append(
            GenerationJob(
                target,
                NUM_STEPS,
                source,
                frozenset({eos}),
                beams=beams,
                num_outputs=beams.size,
            )
        )
    suppressed = checkpoint.special_tokens.suppressed
    actual_hypotheses = _run(directory, graphs, jobs, suppressed)
    compared = 0
    for job, hypotheses in zip(jobs, actual_hypotheses, strict=True):
        expected = _reference(model, job, suppressed)
        assert len(hypotheses) == len(expected)
        for mine, theirs in zip(hypotheses, expected, strict=True):
            assert abs(mine.score - theirs.score) <= SCORE_TOLERANCE
            if mine.tokens != theirs.tokens:
                others = [other for other in expected if other.tokens == mine.tokens]
                assert others, "a hypothesis that the reference did not find"
                assert abs(others[0].score - theirs.score) <= TIE
            compared += 1
    return compared


def _run(
    directory: Path,
    graphs: dict[str, GraphSpec],
    jobs: list[GenerationJob],
    suppressed: tuple[int, ...],
) -> list[list[Hypothesis]]:
    """Runs all jobs concurrently: they share steps and wait for free slots."""
    backend = OrtBackend("cpu", 1)
    loaded = {
        name: backend.load(directory / graph.file, graph.disabled_optimizers)
        for name, graph in graphs.items()
    }
    capacity = Capacity(NUM_SLOTS, 64, 64)
    runner = ModelRunner(
        graphs["decode"],
        loaded["decode"],
        loaded.get("encode"),
        capacity,
        suppressed,
        memory=HostMemory,
    )
    clock = itertools.count().__next__
    generator = GenerationWorker(
        "beams", runner, capacity, StepLimits(NUM_SLOTS, 256), lambda: float(clock()), Unobserved()
    )
    for id_, job in enumerate(jobs):
        generator.submit(id_, job)
    updates: list[JobUpdate] = []
    while generator.has_work:
        updates += generator.step()
    results = []
    for id_, job in enumerate(jobs):
        hypotheses = []
        for output in range(job.num_outputs):
            own = [update for update in updates if (update.id, update.output) == (id_, output)]
            tokens = tuple(token for update in own for token in update.tokens)
            score = own[-1].score
            assert score is not None
            hypotheses.append(Hypothesis(tokens, score))
        results.append(hypotheses)
    return results


def _reference(model: Any, job: GenerationJob, suppressed: tuple[int, ...]) -> list[Hypothesis]:
    assert job.beams is not None
    (eos,) = job.eos
    options: dict[str, Any] = {
        "num_beams": job.beams.size,
        "num_return_sequences": job.beams.size,
        "length_penalty": job.beams.length_penalty,
        "early_stopping": EARLY_STOPPING[job.beams.early_stopping],
        "max_new_tokens": job.max_new_tokens,
        "eos_token_id": eos,
        "pad_token_id": eos,
        "do_sample": False,
        "output_scores": True,
        "return_dict_in_generate": True,
        "forced_eos_token_id": None,
        "forced_bos_token_id": None,
    }
    prompt = torch.tensor([job.prompt])
    if job.source:
        ids = torch.tensor([job.source])
        options |= {"decoder_input_ids": prompt, "decoder_start_token_id": job.prompt[0]}
    else:
        ids = prompt
    # Suppress before the softmax, as the engine does, so that probabilities sum to 1. The
    # option of transformers does it after the softmax.
    never = torch.tensor(suppressed, dtype=torch.long)
    hook = model.get_output_embeddings().register_forward_hook(
        lambda _module, _inputs, logits: logits.index_fill(-1, never, SUPPRESSED_LOGIT)
    )
    try:
        result = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
    finally:
        hook.remove()
    hypotheses = []
    for row, score in zip(result.sequences, result.sequences_scores, strict=True):
        tokens = row[len(job.prompt) :].tolist()
        if eos in tokens:
            tokens = tokens[: tokens.index(eos) + 1]
        hypotheses.append(Hypothesis(tuple(tokens), float(np.float32(score))))
    return hypotheses
