"""BART (Lewis et al. 2019): for generation from a text, such as its summary."""

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
        SourceError, UnsupportedError, WeightsError: as their names say.
    """
    return import_variant(folder, VARIANT)
