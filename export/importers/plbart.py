"""PLBART (Ahmad et al. 2021): BART for programs, with scaled embeddings."""

from export.checkpoint import Checkpoint
from export.importers.bart_tables import BartVariant, import_variant
from export.readers.hugging_face import HuggingFaceFolder
from model.bundle import Task
from model.config import NormOrder
from model.position_config import PositionKind

VARIANT = BartVariant(
    architecture="PLBartForConditionalGeneration",
    tasks=(Task.GENERATE, Task.TRANSLATE),
    order=NormOrder.POST,
    positions=PositionKind.LEARNED,
    scales_embedding=True,
    embedding_norm=True,
)


def import_plbart(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``PLBartForConditionalGeneration`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    return import_variant(folder, VARIANT)
