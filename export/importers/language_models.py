"""Language models of folders that also have a model of images: Gemma 3 and Mistral 3.

Only the language model is imported, for texts.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from export.checkpoint import Checkpoint
from export.importers.causal import OUTPUT_MATRIX
from export.importers.gemma import import_gemma3
from export.importers.mistral import import_ministral3, import_mistral
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.readers.renamed_weights import RenamedWeights
from export.supported import check_supported, lookup

Importer = Callable[[HuggingFaceFolder], Checkpoint]
# Prefixes of the other parts, in files of all versions of transformers.
OTHERS = tuple(
    f"{start}{part}."
    for start in ("", "model.")
    for part in ("vision_tower", "multi_modal_projector")
)
# Prefixes of the language model, and what a folder of its own has instead.
PREFIXES = {"language_model.": "", "model.language_model.": "model."}
TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


@dataclass(frozen=True, kw_only=True)
class Wrapper:
    """A class with a language model.

    Attributes:
        importers: by ``model_type`` of the language model; the first is the default.
        defaults: of fields that published files leave out.
        prefixes: of the language model's weights, and what a folder of its own has instead.
        others: prefixes of the other parts' weights.
    """

    architecture: str
    importers: Mapping[str, Importer]
    defaults: Mapping[str, object] = field(default_factory=dict)
    prefixes: Mapping[str, str] = field(default_factory=lambda: PREFIXES)
    others: tuple[str, ...] = OTHERS


GEMMA3 = Wrapper(
    architecture="Gemma3ForConditionalGeneration",
    importers={"gemma3_text": import_gemma3},
    defaults={
        "vocab_size": 262208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": 131072,
    },
)
MISTRAL3 = Wrapper(
    architecture="Mistral3ForConditionalGeneration",
    importers={"mistral": import_mistral, "ministral3": import_ministral3},
)


def import_gemma3_language_model(folder: HuggingFaceFolder) -> Checkpoint:
    """The language model in ``folder``; see :func:`import_language_model`."""
    return import_language_model(folder, GEMMA3)


def import_mistral3_language_model(folder: HuggingFaceFolder) -> Checkpoint:
    """The language model in ``folder``; see :func:`import_language_model`."""
    return import_language_model(folder, MISTRAL3)


def import_language_model(folder: HuggingFaceFolder, wrapper: Wrapper) -> Checkpoint:
    """The language model of a ``wrapper`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    whole = folder.config
    for name in whole.texts("architectures"):
        named = Fields({"architectures": name}, whole.origin)
        check_supported(named, architectures=(wrapper.architecture,))
    text = whole.fields("text_config").with_defaults(**wrapper.defaults)
    kind = text.text("model_type", next(iter(wrapper.importers)))
    names = dict(_names(folder.weights, wrapper))
    values = {
        **{name: whole[name] for name in TOKENS if whole.get(name) is not None},
        **text,
        "architectures": None,
        "model_type": kind,
        # The configuration of the whole says so too, but only where there is no other matrix.
        "tie_word_embeddings": OUTPUT_MATRIX not in names,
    }
    part = replace(
        folder,
        config=Fields(values, text.origin),
        weights=RenamedWeights(folder.weights, names),
    )
    return lookup(wrapper.importers, kind, f"{text.origin}: model_type")(part)


def _names(weights: Mapping[str, object], wrapper: Wrapper) -> Iterator[tuple[str, str]]:
    """The language model's weights: the name in a folder of its own, and that in ``weights``."""
    for name in weights:
        if name.startswith(wrapper.others):
            continue
        start = next((prefix for prefix in wrapper.prefixes if name.startswith(prefix)), "")
        yield wrapper.prefixes.get(start, "") + name.removeprefix(start), name
