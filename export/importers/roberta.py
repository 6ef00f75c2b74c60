"""RoBERTa (Liu et al. 2019) and XLM-RoBERTa (Conneau et al. 2019), as ``transformers`` saves them.

BERT with shifted positions: those of a text start after the padding's id.
"""

from export.checkpoint import Checkpoint
from export.importers.bert_tables import (
    UNUSED,
    LayerNames,
    embeddings,
    learned_positions,
    normed_embedding,
    num_layers,
    post_norm_layer,
)
from export.importers.encoders import Body, assemble
from export.importers.head_tables import FAIRSEQ_CLASSIFIER, FAIRSEQ_MASKED, five_classes
from export.importers.renaming import per_layer
from export.readers.hugging_face import HuggingFaceFolder
from model.config import StackConfig

PAD = 1


def import_roberta(folder: HuggingFaceFolder) -> Checkpoint:
    """The model in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    first = config.integer("pad_token_id", PAD) + 1
    layers = (post_norm_layer(config),) * num_layers(config)
    body = Body(
        base="roberta",
        hidden_size=config.positive("hidden_size"),
        position=learned_positions(config, first=first),
        embedding=normed_embedding(config),
        encoder=StackConfig(layers=layers),
        table=(
            *embeddings(config, first_position=first),
            *per_layer(LayerNames().table(), len(layers)),
        ),
        ignored=UNUSED,
    )
    return assemble(folder, body, HEADS, "RobertaModel")


HEADS = {
    **five_classes("Roberta", classifier=FAIRSEQ_CLASSIFIER, masked=FAIRSEQ_MASKED),
    **five_classes("XLMRoberta", classifier=FAIRSEQ_CLASSIFIER, masked=FAIRSEQ_MASKED),
}
