"""Classes of T5, mT5 and umT5 that read a text with both stacks, and return labels or the answer.

As in BART, the decoder reads the text one token later (Lewis et al. 2019, section 3.1).
"""

import dataclasses

from export.checkpoint import Checkpoint
from export.importers.bart_heads import classifier, heads
from export.importers.encoders import Body, assemble
from export.importers.renaming import Rename
from export.importers.seq2seq import token_table
from export.importers.t5_encoder import BASE
from export.importers.t5_tables import (
    TOKENS,
    UNUSED,
    decoder_stack,
    encoder_stack,
    positions,
    stack_table,
)
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from model.config import EmbeddingConfig
from model.rereading_config import RereadingConfig

REREADING_HEADS = {
    name: read
    for family in ("T5", "MT5", "UMT5")
    for name, read in heads(family, classifier).items()
}


def import_t5_rereader(folder: HuggingFaceFolder) -> Checkpoint:
    """The model in ``folder``, of a class in ``REREADING_HEADS``, as an encoder.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    check_supported(config, is_causal=(True,))
    config = Fields({**config, "hidden_size": config.positive("d_model")}, config.origin)
    folder = dataclasses.replace(folder, config=config)
    encoder = encoder_stack(config)
    decoder = decoder_stack(config, encoder)
    prefix = f"{BASE}." if any(name.startswith(f"{BASE}.") for name in folder.weights) else ""
    tokens = token_table(folder.weights, tuple(prefix + name for name in TOKENS))
    tokens = tokens.removeprefix(prefix)
    final_norms = tuple(
        Rename(f"{side}.final_norm.weight", (f"{side}.final_layer_norm.weight",))
        for side in ("encoder", "decoder")
    )
    body = Body(
        base=BASE,
        hidden_size=config.positive("hidden_size"),
        position=positions(config),
        embedding=EmbeddingConfig(),
        encoder=encoder,
        decoder=decoder,
        rereading=RereadingConfig(
            first=config.integer("decoder_start_token_id", config.integer("pad_token_id", 0))
        ),
        table=(
            Rename("embedding.tokens.weight", (tokens,)),
            *stack_table("encoder", encoder),
            *stack_table("decoder", decoder),
            *final_norms,
        ),
        ignored=(UNUSED,),
        copies=dict.fromkeys({*TOKENS} - {tokens}, "embedding.tokens.weight"),
    )
    return assemble(folder, body, REREADING_HEADS, "T5ForSequenceClassification")
