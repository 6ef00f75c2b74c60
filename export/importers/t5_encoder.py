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
from model.config import EmbeddingConfig

BASE = "transformer"
TOKENS = ("shared.weight", "encoder.embed_tokens.weight")  # there is no decoder


def import_t5_encoder(folder: HuggingFaceFolder) -> Checkpoint:
    """The encoder in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    config = Fields({**config, "hidden_size": config.positive("d_model")}, config.origin)
    folder = dataclasses.replace(folder, config=config)
    encoder = encoder_stack(config)
    prefix = f"{BASE}." if any(name.startswith(f"{BASE}.") for name in folder.weights) else ""
    tokens = token_table(folder.weights, tuple(prefix + name for name in TOKENS))
    tokens = tokens.removeprefix(prefix)
    body = Body(
        base=BASE,
        hidden_size=config.positive("hidden_size"),
        position=positions(config),
        embedding=EmbeddingConfig(),
        encoder=encoder,
        table=(
            Rename("embedding.tokens.weight", (tokens,)),
            *stack_table("encoder", encoder),
            Rename("encoder.final_norm.weight", ("encoder.final_layer_norm.weight",)),
        ),
        copies=dict.fromkeys({*TOKENS} - {tokens}, "embedding.tokens.weight"),
    )
    return assemble(folder, body, HEADS, "T5EncoderModel")


_READERS: dict[str, HeadReader] = {
    "EncoderModel": embedder,
    "ForTokenClassification": token_classifier,
}
HEADS = {
    f"{family}{name}": read for family in ("T5", "MT5", "UMT5") for name, read in _READERS.items()
}
