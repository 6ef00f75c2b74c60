"""PEGASUS (Zhang et al. 2020): summarization."""

from export.checkpoint import Checkpoint
from export.importers.bart_tables import BartVariant, import_variant
from export.readers.hugging_face import HuggingFaceFolder
from model.bundle import Task
from model.config import NormOrder
from model.position_config import PositionKind

VARIANT = BartVariant(
    architecture="PegasusForConditionalGeneration",
    tasks=(Task.GENERATE,),
    order=NormOrder.PRE,
    positions=PositionKind.SINUSOIDAL_PAPER,
    final_norm=True,
)


def import_pegasus(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``PegasusForConditionalGeneration`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    return import_variant(folder, VARIANT)
