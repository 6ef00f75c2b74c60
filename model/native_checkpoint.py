"""This project's own checkpoint format: ``train`` writes it, ``export`` reads it. Imports no torch.

A folder holds ``config.json`` (a :class:`NativeConfig`), ``model.safetensors`` with the parameter
names of :mod:`model.transformer`, ``tokenizer.json`` and ``training.json``; ``held_out.jsonl`` has
examples that training did not see (:mod:`model.examples`). A model of images has no tokenizer.
"""

from typing import Annotated, Literal

import msgspec

from model.bundle import NAME_PATTERN, Embedding, ScoreFunction, SpecialTokens, Task
from model.config import ModelConfig
from model.graph_spec import Record, Size
from model.image_config import ImageSpec

FORMAT = "triune"
CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
TOKENIZER_FILE = "tokenizer.json"
TRAINING_FILE = "training.json"
HELD_OUT_FILE = "held_out.jsonl"
# In place of WEIGHTS_FILE: what training added to the weights of another model. ``NAME.adapter.a``
# and ``NAME.adapter.b`` are the factors of the change of ``NAME.weight``; others are whole weights.
ADAPTER_FILE = "adapter.safetensors"
ADAPTER_PART = "adapter"
# Names of models begin otherwise.
PATH_STARTS = ("./", "../", "/")


class HeldOut(Record, frozen=True, kw_only=True):
    """A held-out set: its name, and the hash of :data:`HELD_OUT_FILE`."""

    name: str
    sha256: str


class ChangedModel(Record, frozen=True, kw_only=True):
    """The model that an adapter changes.

    Attributes:
        source: a default model's name, ``hf:OWNER/NAME``, or a path relative to this folder,
            which begins with one of :data:`PATH_STARTS`.
        sha256: hash of its weights as safetensors, in the order of their names.
        rank: the largest of the changes.
    """

    source: str
    sha256: str
    rank: Size


class NativeConfig(Record, frozen=True, kw_only=True):
    """``config.json``. ``architecture`` is for information only.

    Attributes:
        image: the preprocessing of a model of images.
        sample_images: PNG files from training, for all checks of a model of images.
        languages: the tokens of a multilingual model's languages.
        adapter: the model to whose weights those of the folder are added.
    """

    format: Literal["triune"] = "triune"
    format_version: Literal[1] = 1
    name: Annotated[str, msgspec.Meta(pattern=NAME_PATTERN)]
    license: str
    architecture: str = "Transformer"
    tasks: tuple[Task, ...]
    model: ModelConfig
    special_tokens: SpecialTokens
    labels: tuple[str, ...] = ()
    score_function: ScoreFunction | None = None
    embedding: Embedding | None = None
    source_language: str | None = None
    target_language: str | None = None
    max_input_tokens: Size | None = None
    max_length_factor: Annotated[float, msgspec.Meta(gt=0)] | None = None
    image: ImageSpec | None = None
    sample_inputs: tuple[str, ...] = ()
    sample_images: tuple[bytes, ...] = ()
    held_out: HeldOut | None = None
    chat_template: str | None = None
    languages: dict[str, int] = msgspec.field(default_factory=dict)
    adapter: ChangedModel | None = None
