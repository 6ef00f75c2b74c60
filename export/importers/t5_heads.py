"""Classes of T5, mT5 and umT5 that read a text with both stacks, and return labels or the answer.

As in BART, the decoder reads the text one token later (Lewis et al. 2019, section 3.1).
"""

import dataclasses

from export.checkpoint import Checkpoint
from export.importers.bart_heads import classifier, heads
from export.importers.encoders import assemble
from export.importers.t5_encoder import body_of, side_table, with_hidden_size
from export.importers.t5_tables import TOKENS, UNUSED, decoder_stack, encoder_stack
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
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
    folder = with_hidden_size(folder)
    encoder = encoder_stack(config)
    decoder = decoder_stack(config, encoder)
    body = body_of(folder, encoder, TOKENS)
    body = dataclasses.replace(
        body,
        decoder=decoder,
        rereading=RereadingConfig(
            first=config.integer("decoder_start_token_id", config.integer("pad_token_id", 0))
        ),
        table=(*body.table, *side_table("decoder", decoder)),
        ignored=(UNUSED,),
    )
    return assemble(folder, body, REREADING_HEADS, "T5ForSequenceClassification")
