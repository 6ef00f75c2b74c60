"""PLBART (Ahmad et al. 2021): BART for programs, with scaled embeddings."""

from export.checkpoint import Checkpoint
from export.importers.bart_heads import import_rereader, multilingual_classifier
from export.importers.bart_tables import BartVariant, import_variant
from export.readers.hugging_face import HuggingFaceFolder
from model.bundle import Task
from model.config import NormOrder
from model.position_config import PositionKind
from model.rereading_config import RereadingConfig

HEADS = {"PLBartForSequenceClassification": multilingual_classifier}

VARIANT = BartVariant(
    architecture="PLBartForConditionalGeneration",
    tasks=(Task.GENERATE, Task.TRANSLATE),
    order=NormOrder.POST,
    positions=PositionKind.LEARNED,
    scales_embedding=True,
    embedding_norm=True,
)


def import_plbart(folder: HuggingFaceFolder) -> Checkpoint:
    """The PLBART in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    if next(iter(folder.config.texts("architectures")), None) in HEADS:
        return import_rereader(folder, VARIANT, HEADS, RereadingConfig())
    return import_variant(folder, VARIANT)
