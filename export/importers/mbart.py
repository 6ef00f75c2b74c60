"""mBART and mBART-50 (Liu et al. 2020; Tang et al. 2020): multilingual BART with pre-norm."""

from export.checkpoint import Checkpoint
from export.importers.bart_tables import BartVariant, import_variant
from export.readers.hugging_face import HuggingFaceFolder
from model.bundle import Task
from model.config import NormOrder
from model.position_config import PositionKind

VARIANT = BartVariant(
    architecture="MBartForConditionalGeneration",
    tasks=(Task.TRANSLATE,),
    order=NormOrder.PRE,
    positions=PositionKind.LEARNED,
    embedding_norm=True,
    final_norm=True,
    language="([a-z]{2}_[A-Z]{2})",
)


def import_mbart(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``MBartForConditionalGeneration`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    return import_variant(folder, VARIANT)
