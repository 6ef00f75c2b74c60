"""LoRA adapters of models whose token table is the output matrix too.

*peft* changes modules: an adapter of the token table leaves the output matrix as it was, and the
other way round. The adapted model then has two matrices.
"""

from collections.abc import Collection

from export.errors import UnsupportedError
from export.importers.causal import OUTPUT_MATRIX
from export.importers.gpt_neox import OUTPUTS
from export.readers.fields import Fields
from export.readers.lora import ADAPTER_FILE, LoraAdapter

TIED = "tie_word_embeddings"
# The last parts of the names of token tables.
_TABLES = ("embed_in", "embed_tokens", "shared", "word_embeddings", "wte")
# Endings of classes: decoders, and models that have one matrix for both.
_DECODERS = ("ForCausalLM", "LMHeadModel")
_ALWAYS_TIED = ("ForConditionalGeneration", "ForMaskedLM", "MTModel")


def separate_output(
    adapter: LoraAdapter, config: Fields, names: Collection[str]
) -> dict[str, str] | None:
    """Whether an adapter of a decoder makes output matrix and token table two matrices.

    Args:
        config: that of the adapted model.
        names: the base model's weights.

    Returns:
        If so, the output matrix and the table of which the base model's is a copy; empty if the
        base model is saved with both. None if not.

    Raises:
        UnsupportedError: it does so in a model that has one matrix for both.
    """
    architecture = next(iter(config.texts("architectures")), "")
    trained = adapter.trained_modules()
    trained_tables = trained.intersection(_TABLES)
    if trained_tables and architecture.endswith(_ALWAYS_TIED) and config.flag(TIED, True):
        raise UnsupportedError(
            f"{ADAPTER_FILE}: an adapter of {min(trained_tables)} is not supported: in a model of "
            f"the class {architecture}, the output matrix is the token table"
        )
    if not architecture.endswith(_DECODERS) or not (trained_tables or "lm_head" in trained):
        return None
    if any(f"{output}.weight" in names for output in OUTPUTS):
        return {}
    tables = [name for name in names if name.removesuffix(".weight").rpartition(".")[2] in _TABLES]
    return {OUTPUT_MATRIX: tables[0]} if len(tables) == 1 else None
