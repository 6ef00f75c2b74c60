"""BART (Lewis et al. 2019): text to text, for example summaries; or labels of a text."""

from export.checkpoint import Checkpoint
from export.importers.bart_heads import classifier, heads, import_rereader
from export.importers.bart_tables import BartVariant, import_variant
from export.readers.hugging_face import HuggingFaceFolder
from model.bundle import Task
from model.config import NormOrder
from model.position_config import PositionKind
from model.rereading_config import RereadingConfig

HEADS = heads("Bart", classifier)

VARIANT = BartVariant(
    architecture="BartForConditionalGeneration",
    tasks=(Task.GENERATE,),
    order=NormOrder.POST,
    positions=PositionKind.LEARNED,
    embedding_norm=True,
)


def import_bart(folder: HuggingFaceFolder) -> Checkpoint:
    """The BART in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    if next(iter(folder.config.texts("architectures")), None) in HEADS:
        first = folder.config.integer("decoder_start_token_id", 2)
        return import_rereader(folder, VARIANT, HEADS, RereadingConfig(first=first))
    return import_variant(folder, VARIANT)
