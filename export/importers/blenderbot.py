"""Blenderbot and BlenderbotSmall (Roller et al. 2020): replies in conversations.

``scale_embedding`` of BlenderbotSmall scales the decoder's tokens too, as in training and in
``transformers`` 4; version 5.23 scales only the encoder's.
"""

from export.checkpoint import Checkpoint
from export.importers.bart_tables import BartVariant, import_variant
from export.readers.hugging_face import HuggingFaceFolder
from model.bundle import Task
from model.config import NormOrder
from model.position_config import PositionKind

VARIANT = BartVariant(
    architecture="BlenderbotForConditionalGeneration",
    tasks=(Task.GENERATE,),
    order=NormOrder.PRE,
    positions=PositionKind.LEARNED,
    num_unused_positions=0,
    final_norm=True,
)
SMALL_VARIANT = BartVariant(
    architecture="BlenderbotSmallForConditionalGeneration",
    tasks=(Task.GENERATE,),
    order=NormOrder.POST,
    positions=PositionKind.LEARNED,
    num_unused_positions=0,
    embedding_norm=True,
    norms_target_tokens=True,
)


def import_blenderbot(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``BlenderbotForConditionalGeneration`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    return import_variant(folder, VARIANT)


def import_blenderbot_small(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``BlenderbotSmallForConditionalGeneration`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    return import_variant(folder, SMALL_VARIANT)
