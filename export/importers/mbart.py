"""mBART and mBART-50 (Liu et al. 2020; Tang et al. 2020): multilingual BART with pre-norm."""

from export.checkpoint import Checkpoint
from export.importers.bart_heads import heads, import_rereader, multilingual_classifier
from export.importers.bart_tables import BartVariant, import_variant
from export.readers.hugging_face import HuggingFaceFolder
from model.bundle import Task
from model.config import NormOrder
from model.position_config import PositionKind
from model.rereading_config import RereadingConfig

HEADS = heads("MBart", multilingual_classifier)

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
    """The mBART in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    if next(iter(folder.config.texts("architectures")), None) in HEADS:
        return import_rereader(folder, VARIANT, HEADS, RereadingConfig())
    return import_variant(folder, VARIANT)
