"""RoBERTa (Liu et al. 2019) and its successors, as ``transformers`` saves them.

BERT with shifted positions: a text's positions start after the padding's id. XLM-RoBERTa (Conneau
et al. 2019), CamemBERT (Martin et al. 2019) and data2vec (Baevski et al. 2022) differ in their
data; XLM-RoBERTa XL (Goyal et al. 2021) and RoBERTa-PreLayerNorm have pre-norm layers.
"""

from export.checkpoint import Checkpoint
from export.importers.bert_tables import BertVariant, LayerNames, bert_body
from export.importers.encoders import assemble
from export.importers.head_tables import FAIRSEQ_CLASSIFIER, FAIRSEQ_MASKED, five_classes
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import lookup
from model.config import NormOrder

PAD = 1
_LAYER = "encoder.layer.{n}"
# By ``model_type``.
VARIANTS = {
    "roberta": BertVariant(base="roberta"),
    "xlm-roberta": BertVariant(base="roberta"),
    "camembert": BertVariant(base="roberta"),
    "data2vec-text": BertVariant(base="data2vec_text"),
    "xlm-roberta-xl": BertVariant(
        base="roberta",
        names=LayerNames(
            attention_norm=f"{_LAYER}.attention.self_attn_layer_norm",
            feed_forward_norm=f"{_LAYER}.LayerNorm",
        ),
        norm_order=NormOrder.PRE,
        embedding_norm=False,
        final_norm="encoder.LayerNorm",
    ),
    "roberta-prelayernorm": BertVariant(
        base="roberta_prelayernorm",
        names=LayerNames(
            attention_norm=f"{_LAYER}.attention.LayerNorm",
            feed_forward_norm=f"{_LAYER}.intermediate.LayerNorm",
        ),
        norm_order=NormOrder.PRE,
        final_norm="LayerNorm",
    ),
}
CLASSES = (
    "Roberta",
    "XLMRoberta",
    "Camembert",
    "Data2VecText",
    "XLMRobertaXL",
    "RobertaPreLayerNorm",
)


def import_roberta(folder: HuggingFaceFolder) -> Checkpoint:
    """The model in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    variant = lookup(VARIANTS, config.text("model_type"), f"{config.origin}: model_type")
    first = config.integer("pad_token_id", PAD) + 1
    body = bert_body(config, variant, first_position=first)
    return assemble(folder, body, HEADS, "RobertaModel")


HEADS = {
    name: reader
    for family in CLASSES
    for name, reader in five_classes(
        family, classifier=FAIRSEQ_CLASSIFIER, masked=FAIRSEQ_MASKED
    ).items()
}
