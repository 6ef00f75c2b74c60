"""The encoder alone of T5, mT5 and umT5: sentence-T5 and GTR (Ni et al. 2021)."""

import dataclasses

from export.checkpoint import Checkpoint
from export.importers.encoders import Body, assemble
from export.importers.heads import HeadReader, token_classifier
from export.importers.renaming import Rename
from export.importers.sentence_transformers import embedder
from export.importers.seq2seq import token_table
from export.importers.t5_tables import encoder_stack, positions, stack_table
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from model.config import EmbeddingConfig, StackConfig

BASE = "transformer"
TOKENS = ("shared.weight", "encoder.embed_tokens.weight")  # there is no decoder


def import_t5_encoder(folder: HuggingFaceFolder) -> Checkpoint:
    """The encoder in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    folder = with_hidden_size(folder)
    body = body_of(folder, encoder_stack(folder.config), TOKENS)
    return assemble(folder, body, HEADS, "T5EncoderModel")


def with_hidden_size(folder: HuggingFaceFolder) -> HuggingFaceFolder:
    """``folder`` with the name that other encoders' configurations have for ``d_model``."""
    config = folder.config
    fields = {**config, "hidden_size": config.positive("d_model")}
    return dataclasses.replace(folder, config=Fields(fields, config.origin))


def body_of(folder: HuggingFaceFolder, encoder: StackConfig, names: tuple[str, ...]) -> Body:
    """The encoder; ``names`` are those that its token table may have."""
    prefix = f"{BASE}." if any(name.startswith(f"{BASE}.") for name in folder.weights) else ""
    tokens = token_table(folder.weights, tuple(prefix + name for name in names))
    tokens = tokens.removeprefix(prefix)
    return Body(
        base=BASE,
        hidden_size=folder.config.positive("hidden_size"),
        position=positions(folder.config),
        embedding=EmbeddingConfig(),
        encoder=encoder,
        table=(Rename("embedding.tokens.weight", (tokens,)), *side_table("encoder", encoder)),
        copies=dict.fromkeys({*names} - {tokens}, "embedding.tokens.weight"),
    )


def side_table(side: str, stack: StackConfig) -> tuple[Rename, ...]:
    """The weights of the stack ``side``, "encoder" or "decoder", with its final norm."""
    norm = Rename(f"{side}.final_norm.weight", (f"{side}.final_layer_norm.weight",))
    return (*stack_table(side, stack), norm)


_READERS: dict[str, HeadReader] = {
    "EncoderModel": embedder,
    "ForTokenClassification": token_classifier,
}
HEADS = {
    f"{family}{name}": read for family in ("T5", "MT5", "UMT5") for name, read in _READERS.items()
}
