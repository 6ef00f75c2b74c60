"""M2M-100 (Fan et al. 2020) and NLLB-200 (NLLB Team 2022): translation among many languages."""

from export.checkpoint import Checkpoint
from export.importers.bart_tables import BartVariant, import_variant
from export.readers.hugging_face import HuggingFaceFolder
from model.bundle import Task
from model.config import NormOrder
from model.position_config import PositionKind

VARIANT = BartVariant(
    architecture="M2M100ForConditionalGeneration",
    tasks=(Task.TRANSLATE,),
    order=NormOrder.PRE,
    positions=PositionKind.SINUSOIDAL,
    activation="relu",
    scales_embedding=True,
    first_position=lambda pad: pad + 1,
    final_norm=True,
    logits_bias=False,
    language="(?:__)?([a-z]{2,3}(?:_[A-Z][a-z]{3})?)(?:__)?",
)


def import_m2m100(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``M2M100ForConditionalGeneration`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    return import_variant(folder, VARIANT)
