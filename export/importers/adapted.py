"""Models with a LoRA adapter: the folder of the adapter over that of the model it changes."""

import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from export.errors import SourceError
from export.importers.merged_weights import MergedWeights
from export.importers.sentence_transformers import MODULES_FILE
from export.importers.tied_adapters import TIED, separate_output
from export.readers.fields import Fields
from export.readers.hugging_face import (
    CONFIG_FILE,
    UNKNOWN_LICENSE,
    HuggingFaceFolder,
    read_folder,
    read_license,
)
from export.readers.lora import ADAPTER_FILE, ADAPTER_WEIGHTS_FILE, LoraAdapter, read_adapter
from export.tokenization.hugging_face import read_fields

# The class that peft trains for a task, after the family's name.
_CLASSES = {
    "SEQ_CLS": "ForSequenceClassification",
    "TOKEN_CLS": "ForTokenClassification",
    "QUESTION_ANS": "ForQuestionAnswering",
    "FEATURE_EXTRACTION": "Model",
}
_CLASS_ENDING = re.compile(r"(?:LMHeadModel|Model|For[A-Z]\w*|DoubleHeadsModel)$")


def base_of(path: Path) -> tuple[str, str | None]:
    """The model that the adapter in ``path`` changes: its folder or name, and its revision.

    Raises:
        SourceError: the adapter does not say.
    """
    config = read_fields(path / ADAPTER_FILE)
    name = config.text("base_model_name_or_path", "")
    if not name:
        raise SourceError(f"{path / ADAPTER_FILE}: no base_model_name_or_path: give --base")
    return name, config.text("revision", "") or None


@contextmanager
def adapted_folder(path: Path, base: Path) -> Iterator[HuggingFaceFolder]:
    """The folder ``base`` with the files and the merged weights of the adapter in ``path``.

    Raises:
        SourceError: a file is missing or damaged, or the adapter does not fit ``base``.
        UnsupportedError: the adapter is of a kind that is not supported.
    """
    if not (base / CONFIG_FILE).is_file():
        raise SourceError(f"{base}: no {CONFIG_FILE}: the model of an adapter is such a folder")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / path.resolve().name
        folder.mkdir()
        files = {file.name: file for file in base.iterdir()}
        files |= {file.name: file for file in path.iterdir()}
        config = read_fields(files.pop(CONFIG_FILE))
        model_type = config.text("model_type", "")
        adapter = read_adapter(path, read_fields(path / ADAPTER_FILE), model_type)
        changes = _class_of(adapter, config)
        if changes and files.get(MODULES_FILE) == base / MODULES_FILE:
            del files[MODULES_FILE]  # those of an embedding model, before the adapter's head
        for name in files.keys() - {ADAPTER_FILE, ADAPTER_WEIGHTS_FILE}:
            (folder / name).symlink_to(files[name].resolve())
        (folder / CONFIG_FILE).write_text(json.dumps(dict(config)))
        found = read_folder(folder)
        names = _names_of_body(adapter, found.weights) if changes else tuple(found.weights)
        copies = separate_output(adapter, Fields({**config, **changes}, config.origin), names)
        if copies is not None:
            changes[TIED] = False
        weights = MergedWeights(adapter, found.weights, names, copies or {})
        changes |= _sizes(adapter, config, weights)
        config = Fields({**config, **changes}, config.origin)
        if found.license == UNKNOWN_LICENSE:
            found = replace(found, license=read_license(base / "README.md"))
        yield replace(found, config=config, weights=weights)


def _class_of(adapter: LoraAdapter, config: Fields) -> dict[str, object]:
    """The field ``architectures``, if the adapter was trained in another class than the model's."""
    names = config.texts("architectures")
    trained = adapter.config.fields("auto_mapping").text("base_model_class", "")
    ending = _CLASSES.get(adapter.config.text("task_type", ""))
    if not trained and ending is not None and names and _CLASS_ENDING.search(names[0]):
        trained = _CLASS_ENDING.sub(ending, names[0])
    return {"architectures": [trained]} if trained and [trained] != names else {}


def _names_of_body(adapter: LoraAdapter, weights: Iterable[str]) -> tuple[str, ...]:
    """Names without those of a head, which are beside the body that the adapter changes."""
    bodies = Counter(layer.name.partition(".")[0] for layer in adapter.layers)
    start = f"{bodies.most_common(1)[0][0]}." if bodies else ""
    return tuple(name for name in weights if name.startswith(start)) or tuple(weights)


def _sizes(adapter: LoraAdapter, config: Fields, weights: MergedWeights) -> dict[str, object]:
    """The fields of the configuration whose sizes the adapter changes."""
    changes: dict[str, object] = {}
    num_labels = adapter.num_labels()
    if num_labels not in (None, len(config.fields("id2label"))):
        changes |= {"num_labels": num_labels, "id2label": None}
    size = config.get("vocab_size")
    for name, own in weights.whole.items():
        original = weights.original(name)
        if original is not None and original.shape[:1] == (size,):
            changes["vocab_size"] = len(adapter.read(own))
    return changes
