"""Runs one training, from its recipe to a native checkpoint."""

import shlex
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from export.checkpoint import Checkpoint
from model.bundle import MultiVector
from model.config import ModelConfig
from model.native_checkpoint import CONFIG_FILE, TRAINING_FILE
from model.transformer import Transformer
from train.adapter import add_adapter, num_trained
from train.architecture import KINDS, model_config, with_new_head
from train.data.dataset import Dataset, hash_of, labels_of
from train.data.sources import load_dataset
from train.errors import RecipeError, ResumeError, TrainingError
from train.inputs import encode, inputs_of
from train.log import draw_learning_curve
from train.native import (
    Trained,
    TrainingRecord,
    commit_of_code,
    num_parameters,
    recorded_recipe,
    write_checkpoint,
)
from train.objectives import TrainingModule
from train.preparation import Preparation
from train.read_recipe import read_recipe
from train.recipe import GlobalTokens, ModelRecipe, Recipe
from train.regularization import TrainingKernels, add_dropout
from train.report import TrainingReport
from train.retrieval import RetrievalModule
from train.retrieval_architecture import with_retrieval_head
from train.start import (
    initial_weights,
    known_weights,
    load_start,
    separator_of,
    start_record,
    start_tokenizer,
)
from train.state import STATE_FOLDER, StateFolder
from train.steps import Optimization, PenaltyWeights, barrier, num_processes
from train.tokenizer import EOS
from train.trainer import Result, Rows, Trainer, seed_everything


def run_training(recipe_path: Path, out: Path, *, restart: bool = False) -> Path:
    """Trains the recipe and writes ``out``; continues an unfinished training in ``out``.

    Raises:
        TrainingError: the recipe, the data or the state in ``out`` is unusable.
    """
    recipe = read_recipe(recipe_path)
    rank = dist.get_rank() if dist.is_initialized() else 0
    report = TrainingReport(recipe.name, recipe.training.num_steps, is_quiet=rank > 0)
    if _is_finished(out, recipe, restart=restart):
        report.say(f"{out}: this training is complete; --restart trains again")
        return out
    _make_folder(out)
    dataset = load_dataset(recipe, recipe_path.parent)
    start = load_start(recipe, recipe_path.parent)
    barrier()  # until every process has looked for a finished training
    if restart and rank == 0:
        shutil.rmtree(out / STATE_FOLDER, ignore_errors=True)
        (out / CONFIG_FILE).unlink(missing_ok=True)
    barrier()
    inputs = inputs_of(recipe, start, out, dataset)
    labels = () if recipe.retrieval is not None else labels_of(dataset.train)
    config = _model_config(recipe, inputs.vocabulary_size, labels, start)
    rows = encode(recipe, inputs, labels, dataset)
    kernels = TrainingKernels(recipe.training.attention_dropout)
    model = Transformer(config, kernels)
    model.load_state_dict(initial_weights(config, recipe.seed, start))
    add_dropout(model, recipe.training)
    if recipe.adapter is not None and start is not None:
        add_adapter(model, recipe.adapter, known_weights(config, start), recipe.seed)
    torch.manual_seed(recipe.seed)  # for the weights of the second head
    module = _module(recipe, model, kernels, inputs.reading)
    seed_everything(recipe.seed, rank)
    optimization = Optimization(module, recipe.training, _penalty_weights(recipe.model))
    report.say(
        f"{recipe.name}: {num_trained(module):,} of {num_parameters(model):,} parameters to train, "
        f"{len(rows.train):,} examples, {inputs.vocabulary_size:,} tokens in the vocabulary"
    )
    preparation = Preparation(recipe, rows.train, inputs.vocabulary)
    state = StateFolder(out, _fingerprint(recipe, dataset, start))
    with report:
        result = Trainer(optimization, rows, recipe.seed, state, out, preparation).run(report)
    barrier()  # until every process has read the checkpoints that the first one deletes
    if rank == 0:
        command = shlex.join(["python", "-m", "train", str(recipe_path), "--out", out.name])
        record = _record(recipe, command, dataset, start, rows, result, module)
        draw_learning_curve(out, recipe.name)
        trained = Trained(config=config, inputs=inputs, labels=labels, start=start)
        write_checkpoint(out, recipe, recipe_path.parent, trained, dataset, result, record)
        shutil.rmtree(out / STATE_FOLDER)
        report.say(f"{out}: validation loss {result.validation_loss:.4f}")
    return out


def _is_finished(out: Path, recipe: Recipe, *, restart: bool) -> bool:
    """Whether ``out`` has the checkpoint of this recipe, which ``restart`` does not keep.

    Raises:
        ResumeError: ``out`` has another model.
    """
    if not (out / CONFIG_FILE).is_file():
        return False
    if not (out / TRAINING_FILE).is_file():
        raise ResumeError(f"--out {out}: its {CONFIG_FILE} is not of a training; choose another")
    if restart:
        return False
    if recorded_recipe(out) != recipe:
        raise ResumeError(
            f"--out {out}: a finished training of another recipe; choose another, or --restart"
        )
    return True


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TrainingError(f"--out {out}: {error.strerror}") from error


def _fingerprint(recipe: Recipe, dataset: Dataset, start: Checkpoint | None) -> dict[str, Any]:
    """Everything that must stay the same for a training to continue, by its name in messages."""
    return {
        "recipe": recipe.fingerprint,
        "data": hash_of(dataset.train),
        "validation data": hash_of(dataset.validation),
        "start_from": None if start is None else start_record(start).sha256,
        "number of processes": num_processes(),
        "number of threads": torch.get_num_threads(),
    }


def _record(
    recipe: Recipe,
    command: str,
    dataset: Dataset,
    start: Checkpoint | None,
    rows: Rows,
    result: Result,
    module: TrainingModule,
) -> TrainingRecord:
    return TrainingRecord(
        recipe=recipe,
        command=command,
        commit=commit_of_code(),
        data=dataset.origins,
        train_sha256=hash_of(dataset.train),
        num_train=len(rows.train),
        num_validation=len(rows.validation),
        num_held_out=len(dataset.held_out),
        num_dropped=rows.num_dropped,
        num_parameters=num_parameters(module.model),
        num_trained=num_trained(module),
        num_steps=result.progress.step,
        num_target_tokens=result.progress.num_tokens,
        seconds=result.progress.seconds,
        cpu_seconds=result.progress.cpu_seconds,
        num_threads=torch.get_num_threads(),
        num_processes=num_processes(),
        start_from=None if start is None else start_record(start),
        torch=str(torch.__version__),
        validation_loss=result.validation_loss,
        averaged_steps=result.averaged_steps,
        validations=tuple(result.progress.validations),
    )


def _module(
    recipe: Recipe, model: Transformer, kernels: TrainingKernels, reading: MultiVector | None
) -> TrainingModule:
    if recipe.retrieval is not None and reading is not None:
        return RetrievalModule(model, kernels, recipe.retrieval, reading)
    return TrainingModule(
        model, kernels, recipe.objective, next_sentence=recipe.training.next_sentence
    )


def _penalty_weights(model: ModelRecipe | None) -> PenaltyWeights:
    experts, universal = (None, None) if model is None else (model.experts, model.universal)
    return PenaltyWeights(
        balancing=0.0 if experts is None else experts.balancing,
        ponder=universal.ponder_cost if universal is not None and universal.halting else 0.0,
    )


def _model_config(
    recipe: Recipe, vocabulary_size: int, labels: tuple[str, ...], start: Checkpoint | None
) -> ModelConfig:
    """The configuration of the recipe's model, or of ``start`` with a new head."""
    model = _headed_model(recipe, vocabulary_size, labels, start)
    return model if recipe.retrieval is None else with_retrieval_head(model, recipe.retrieval)


def _headed_model(
    recipe: Recipe, vocabulary_size: int, labels: tuple[str, ...], start: Checkpoint | None
) -> ModelConfig:
    if recipe.model is not None:
        separator: int | None = EOS
        if start is not None and recipe.model.global_tokens == GlobalTokens.QUESTION:
            separator = separator_of(start_tokenizer(start))
        return model_config(recipe.model, recipe.objective, vocabulary_size, len(labels), separator)
    if start is None:
        raise RecipeError("model: missing")
    if start.config.kind != KINDS[recipe.objective]:
        raise RecipeError(
            f"start_from: objective {recipe.objective} needs an {KINDS[recipe.objective]}"
        )
    is_of_texts, positions = start.config.patches is None, start.config.position.max_positions
    if is_of_texts and recipe.data.max_length > positions:
        raise RecipeError("data.max_length: more than the positions of start_from")
    if recipe.retrieval is not None and recipe.retrieval.query_length > positions:
        raise RecipeError("retrieval.query_length: more than the positions of start_from")
    return with_new_head(start.config, recipe.objective, len(labels))
