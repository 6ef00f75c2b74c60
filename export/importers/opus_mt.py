"""Marian's translation models as ``transformers`` saves them (OPUS-MT; Tiedemann et al. 2020).

These are the base and big Transformers of Vaswani et al. 2017.
"""

from export.checkpoint import Checkpoint
from export.errors import UnsupportedError
from export.importers.bart_tables import BartVariant, import_variant
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from model.bundle import Task
from model.config import NormOrder
from model.position_config import PositionKind

VARIANT = BartVariant(
    architecture="MarianMTModel",
    tasks=(Task.TRANSLATE,),
    order=NormOrder.POST,
    positions=PositionKind.SINUSOIDAL_PAPER,
)


def import_opus_mt(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``MarianMTModel`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    check_supported(config, share_encoder_decoder_embeddings=(True,))
    sizes = [config.positive("vocab_size"), config.optional_integer("decoder_vocab_size")]
    if sizes[1] not in (None, sizes[0]):
        raise UnsupportedError(
            f"{config.origin}: decoder_vocab_size {sizes[1]} is not supported; "
            f"supported: vocab_size, {sizes[0]}"
        )
    return import_variant(folder, VARIANT)
