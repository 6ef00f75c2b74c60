"""Writes a finished training as a native checkpoint (:mod:`model.native_checkpoint`)."""

import math
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import save
from torch import Tensor

from export.checkpoint import Checkpoint
from model.bundle import ScoreFunction, Task
from model.config import ModelConfig
from model.examples import Example, write_examples
from model.native_checkpoint import (
    ADAPTER_FILE,
    CONFIG_FILE,
    HELD_OUT_FILE,
    TOKENIZER_FILE,
    TRAINING_FILE,
    WEIGHTS_FILE,
    ChangedModel,
    HeldOut,
    NativeConfig,
)
from model.transformer import Transformer, parameter_shapes
from train.adapter import scaled_factors
from train.data.dataset import Dataset, Origin, hash_of, texts_of
from train.data.sources import OBJECTIVE_TASKS
from train.errors import TrainingError
from train.images import sample_images
from train.inputs import Inputs
from train.recipe import ObjectiveKind, Recipe, StoredPrecision
from train.retrieval_architecture import embedding_of
from train.start import StartRecord, is_name
from train.trainer import Result

NUM_SAMPLES = 6
STORED_DTYPES = {
    StoredPrecision.FP32: torch.float32,
    StoredPrecision.FP16: torch.float16,
}
SCORE_FUNCTIONS = {ObjectiveKind.RELEVANCE: ScoreFunction.SIGMOID}


class TrainingRecord(msgspec.Struct, frozen=True, kw_only=True):
    """``training.json``: how the weights were trained.

    Attributes:
        command: the command that trains them again.
        commit: the commit of the code; ends with ``-dirty`` if there were local changes.
        num_train, num_validation: numbers of examples; for relevance, of pairs of query and
            document.
        num_parameters, num_trained: numbers of elements of all weights, and of the trained ones.
        num_dropped: number of those for training that were longer than the recipe allows.
        seconds, cpu_seconds: of the steps and validations; the processor time is that of the first
            process, and does not grow when other programs share the machine.
        averaged_steps: steps of the checkpoints whose weights were averaged.
    """

    recipe: Recipe
    command: str
    commit: str
    data: tuple[Origin, ...]
    train_sha256: str
    num_train: int
    num_validation: int
    num_held_out: int
    num_dropped: int
    num_parameters: int
    num_trained: int
    num_steps: int
    num_target_tokens: int
    seconds: float
    cpu_seconds: float
    num_threads: int
    num_processes: int
    start_from: StartRecord | None = None
    torch: str
    validation_loss: float
    averaged_steps: tuple[int, ...]
    validations: tuple[tuple[int, float], ...]


class _RecordedRecipe(msgspec.Struct, frozen=True):
    """The part of ``training.json`` that every version has."""

    recipe: Recipe


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A trained model. ``start``: the one that it began as."""

    config: ModelConfig
    inputs: Inputs
    labels: tuple[str, ...]
    start: Checkpoint | None = None


def write_checkpoint(
    folder: Path,
    recipe: Recipe,
    recipe_folder: Path,
    trained: Trained,
    dataset: Dataset,
    result: Result,
    record: TrainingRecord,
) -> None:
    """Writes the checkpoint into ``folder``; ``config.json`` comes last.

    Raises:
        TrainingError: the weights cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found, file = result.weights, WEIGHTS_FILE
    if recipe.adapter is not None:
        found, file = scaled_factors(found, recipe.adapter), ADAPTER_FILE
    dtype = STORED_DTYPES[recipe.stored_precision]
    weights = {name: _stored(weight, dtype) for name, weight in found.items()}
    try:
        # save_file would make a file that only its owner can read.
        (folder / file).write_bytes(save(weights))
    except OSError as error:
        raise TrainingError(f"cannot write {folder / file}: {error.strerror}") from error
    if trained.inputs.tokenizer is not None:
        (folder / TOKENIZER_FILE).write_text(trained.inputs.tokenizer.to_str(), encoding="utf-8")
    write_examples(folder / HELD_OUT_FILE, dataset.held_out)
    (folder / TRAINING_FILE).write_bytes(_json(record))
    native = NativeConfig(
        name=recipe.name,
        license=recipe.license,
        model=trained.config,
        special_tokens=trained.inputs.tokens,
        image=trained.inputs.image,
        sample_inputs=_samples(dataset.held_out) if trained.inputs.tokenizer else (),
        sample_images=sample_images(dataset.train) if trained.inputs.image else (),
        held_out=HeldOut(name=f"{dataset.name} held out", sha256=hash_of(dataset.held_out)),
        adapter=_changed_model(folder, recipe, recipe_folder, record.start_from),
        **_use(recipe, trained),
    )
    partial = folder / f"{CONFIG_FILE}.partial"
    partial.write_bytes(_json(native))
    partial.replace(folder / CONFIG_FILE)


def _use(recipe: Recipe, trained: Trained) -> dict[str, Any]:
    """How the model is used: the fields of its configuration that say so."""
    start = trained.start
    is_translation = recipe.objective == ObjectiveKind.SEQUENCE_TO_SEQUENCE
    reads_texts = trained.inputs.tokenizer is not None and trained.config.reads_texts
    of_recipe = {
        "tasks": _tasks(recipe),
        "source_language": recipe.source_language,
        "target_language": recipe.target_language,
        "max_length_factor": recipe.max_length_factor if is_translation else None,
    }
    if start is None or trained.config != start.config or recipe.retrieval is not None:
        embedding = None
        if recipe.retrieval is not None and trained.inputs.reading is not None:
            embedding = embedding_of(recipe.retrieval, trained.config, trained.inputs.reading)
        return of_recipe | {
            "labels": trained.labels,
            "score_function": SCORE_FUNCTIONS.get(recipe.objective),
            "embedding": embedding,
            "max_input_tokens": recipe.data.max_length if reads_texts else None,
        }
    kept: tuple[str, ...] = ("max_input_tokens", "chat_template", "languages", "architecture")
    # A text may become another than the translation that start_from wrote.
    if recipe.adapter is not None or start.languages or not is_translation:
        kept = (*kept, *of_recipe)
    return of_recipe | {name: getattr(start, name) for name in kept}


def _changed_model(
    folder: Path, recipe: Recipe, recipe_folder: Path, start: StartRecord | None
) -> ChangedModel | None:
    source = recipe.start_from
    if recipe.adapter is None or source is None or start is None:
        return None
    if not is_name(source):
        source = f"./{os.path.relpath(recipe_folder / source, folder)}"
    return ChangedModel(source=source, sha256=start.sha256, rank=recipe.adapter.rank)


def recorded_recipe(folder: Path) -> Recipe | None:
    """The recipe in ``training.json``; None if this version has no such recipes."""
    try:
        data = msgspec.json.decode((folder / TRAINING_FILE).read_bytes(), type=_RecordedRecipe)
    except msgspec.DecodeError:
        return None
    return data.recipe


def _tasks(recipe: Recipe) -> tuple[Task, ...]:
    """The tasks that the model serves; text to text without languages also serves Generate."""
    task = OBJECTIVE_TASKS[recipe.objective]
    if task == Task.EMBED:
        return (task, Task.RERANK)
    if task == Task.TRANSLATE and recipe.target_language is None:
        return (task, Task.GENERATE)
    return (task,)


def _stored(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Keeps a bias that rules a token out finite."""
    limits = torch.finfo(dtype)
    return weight.clamp(limits.min, limits.max).to(dtype).contiguous()


def _samples(examples: Sequence[Example]) -> tuple[str, ...]:
    """Texts for the parity check: the first text of each example."""
    return tuple(next(texts_of([example])) for example in examples[:NUM_SAMPLES])


def commit_of_code() -> str:
    """The commit of this repository; empty outside a repository."""
    root = Path(__file__).resolve().parents[1]

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        return result.stdout.strip() if result.returncode == 0 else ""

    commit = git("rev-parse", "HEAD")
    return f"{commit}-dirty" if commit and git("status", "--porcelain", "-uno") else commit


def num_parameters(model: Transformer) -> int:
    """Number of elements of all weights, without an adapter."""
    return sum(math.prod(shape) for shape in parameter_shapes(model.config).values())


def _json(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
