"""BART (Lewis et al. 2019): text to text, for example summaries."""

from export.checkpoint import Checkpoint
from export.importers.bart_tables import BartVariant, import_variant
from export.readers.hugging_face import HuggingFaceFolder
from model.bundle import Task
from model.config import NormOrder
from model.position_config import PositionKind

VARIANT = BartVariant(
    architecture="BartForConditionalGeneration",
    tasks=(Task.GENERATE,),
    order=NormOrder.POST,
    positions=PositionKind.LEARNED,
    embedding_norm=True,
)


def import_bart(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``BartForConditionalGeneration`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    return import_variant(folder, VARIANT)
