"""What the models of :mod:`tests.tiny` share: a tokenizer, and weights trained only once."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from filelock import FileLock
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

import model.basics
import model.config
import model.eager
import model.heads
import model.initialise
import model.layers
import model.mixers
import model.recurrent
import model.recurrent_cells
import model.recurrent_config
import model.short_convolution
import model.transformer
import train.batches
import train.objectives
import train.regularization
import train.steps
from model.config import HeadKind, Kind, ModelConfig
from model.initialise import random_weights
from model.transformer import Transformer
from train.batches import TrainingBatch
from train.objectives import TrainingModule
from train.recipe import ObjectiveKind, TrainingRecipe
from train.regularization import TrainingKernels
from train.steps import NO_PENALTIES, Optimization, PenaltyWeights

CACHE = Path(__file__).resolve().parents[1] / "build" / "tiny"
FILES = ("tiny.py", "tiny_hybrid.py", "tiny_recurrent.py")
MODELS = [Path(__file__).with_name(name) for name in FILES]
PAD, EOS, UNKNOWN, BOS = 0, 1, 2, 3
SPECIAL = ["<pad>", "</s>", "<unk>", "<s>"]
CHARACTERS = [chr(code) for code in range(32, 127)]
BATCH_SIZE = 32


def character_tokenizer(*, begins: bool, ends: bool) -> Tokenizer:
    """One token a character; BOS and EOS around a text where asked."""
    vocabulary = {token: index for index, token in enumerate(SPECIAL + CHARACTERS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(SPECIAL)
    template = f"{'<s> ' if begins else ''}$A{' </s>' if ends else ''}"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=[("<s>", BOS), ("</s>", EOS)]
    )
    return tokenizer


VOCABULARY_SIZE = len(SPECIAL) + len(CHARACTERS)


def _source_hash() -> str:
    """Hashes everything that the trained weights depend on."""
    modules = (
        model.basics,
        model.config,
        model.eager,
        model.heads,
        model.initialise,
        model.layers,
        model.mixers,
        model.recurrent,
        model.recurrent_cells,
        model.recurrent_config,
        model.short_convolution,
        model.transformer,
        train.batches,
        train.objectives,
        train.regularization,
        train.steps,
    )
    digest = hashlib.sha256(torch.__version__.encode())
    for path in (*(str(module.__file__) for module in modules), __file__, *map(str, MODELS)):
        digest.update(Path(path).read_bytes())
    return digest.hexdigest()[:16]


def objective_of(config: ModelConfig) -> ObjectiveKind:
    """What a model of ``config`` is trained for."""
    if config.kind == Kind.DECODER:
        return ObjectiveKind.NEXT_TOKEN
    if config.kind == Kind.ENCODER_DECODER:
        return ObjectiveKind.SEQUENCE_TO_SEQUENCE
    assert config.head.kind == HeadKind.CLASSIFICATION
    return ObjectiveKind.CLASSIFICATION


def optimization(
    config: ModelConfig,
    training: TrainingRecipe,
    seed: int = 0,
    weights: PenaltyWeights = NO_PENALTIES,
) -> Optimization:
    """A new model of ``config`` and its optimizer."""
    kernels = TrainingKernels(training.attention_dropout)
    module = TrainingModule(Transformer(config, kernels), kernels, objective_of(config))
    module.model.load_state_dict(random_weights(config, seed))
    return Optimization(module, training, weights)


def train_model(
    config: ModelConfig,
    batches: Iterator[TrainingBatch],
    training: TrainingRecipe,
    num_averaged_steps: int,
) -> dict[str, torch.Tensor]:
    """The mean weights of the last ``num_averaged_steps`` steps, one batch per step."""
    steps = optimization(config, training)
    averaged = torch.optim.swa_utils.AveragedModel(steps.module.model)
    for step, batch in zip(range(training.num_steps), batches, strict=False):
        steps.step([batch])
        if step >= training.num_steps - num_averaged_steps:
            averaged.update_parameters(steps.module.model)
    weights = averaged.module.state_dict()
    return {name: weight.detach().clone() for name, weight in weights.items()}


def trained(
    name: str,
    config: ModelConfig,
    batches: Callable[[], Iterator[TrainingBatch]],
    training: TrainingRecipe,
    num_averaged_steps: int = 1,
) -> dict[str, torch.Tensor]:
    """The weights of :func:`train_model`, kept in ``build/`` while the code is the same."""
    path = CACHE / f"{name}-{_source_hash()}.pt"
    CACHE.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        if not path.exists():
            num_threads = torch.get_num_threads()
            torch.set_num_threads(1)  # matrices this small are slower with more
            try:
                weights = train_model(config, batches(), training, num_averaged_steps)
            finally:
                torch.set_num_threads(num_threads)
            partial = path.with_suffix(".partial")
            torch.save(weights, partial)
            partial.replace(path)
    loaded: dict[str, torch.Tensor] = torch.load(path, weights_only=True)
    return loaded
