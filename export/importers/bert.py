"""BERT (Devlin et al. 2018) and successors with its heads, as ``transformers`` saves them.

MegatronBERT (Shoeybi et al. 2019) has pre-norm layers. ERNIE (Sun et al. 2019) has task types;
here, all texts have the first one.
"""

from export.checkpoint import Checkpoint
from export.importers.bert_tables import BertVariant, LayerNames, bert_body
from export.importers.encoders import assemble
from export.importers.head_tables import always, bert_masked, classifier, five_classes
from export.importers.heads import HeadReader
from export.readers.hugging_face import HuggingFaceFolder
from model.config import Activation, NormOrder

BERT = BertVariant(base="bert")
ERNIE = BertVariant(base="ernie")
MEGATRON = BertVariant(
    base="bert",
    names=LayerNames(
        attention_norm="encoder.layer.{n}.attention.ln", feed_forward_norm="encoder.layer.{n}.ln"
    ),
    norm_order=NormOrder.PRE,
    embedding_norm=False,
    final_norm="encoder.ln",
)
TASK_TYPES = "embeddings.task_type_embeddings.weight"
# The next-sentence head of BertForPreTraining.
NEXT_SENTENCE = ("cls.seq_relationship.weight", "cls.seq_relationship.bias")


def import_bert(folder: HuggingFaceFolder) -> Checkpoint:
    """The model in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    return assemble(folder, bert_body(folder.config, BERT), HEADS, "BertModel")


def import_ernie(folder: HuggingFaceFolder) -> Checkpoint:
    """The model in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    added = (TASK_TYPES,) if folder.config.flag("use_task_id", False) else ()
    body = bert_body(folder.config, ERNIE, added=added)
    return assemble(folder, body, ERNIE_HEADS, "ErnieModel")


def import_megatron_bert(folder: HuggingFaceFolder) -> Checkpoint:
    """The model in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    body = bert_body(folder.config, MEGATRON)
    return assemble(folder, body, MEGATRON_HEADS, "MegatronBertModel")


def _heads(family: str, base: str) -> dict[str, HeadReader]:
    masked = bert_masked(NEXT_SENTENCE)
    pooled = classifier(f"{base}.pooler.dense", always(Activation.TANH))
    return {
        **five_classes(family, classifier=pooled, masked=masked),
        f"{family}ForPreTraining": masked,
    }


HEADS = _heads("Bert", BERT.base)
ERNIE_HEADS = _heads("Ernie", ERNIE.base)
MEGATRON_HEADS = _heads("MegatronBert", MEGATRON.base)
