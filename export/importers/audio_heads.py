"""The heads of transformers' classifiers of recordings."""

from dataclasses import replace

from torch import Tensor

from export.importers.heads import Head, NamedDense, sequence_classifier
from export.importers.renaming import Rename
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from model.bundle import Task
from model.config import DenseConfig, PoolingKind


def sums_layers(config: Fields) -> bool:
    """Whether a classifier reads a weighted sum of the layers, not only the last one.

    The last one is summed after the norm at the end: in training, and in ``transformers`` 4.
    ``transformers`` 5 leaves the norm out of Wav2Vec2's sum, unless ``tie_last_hidden_states``.

    Raises:
        UnsupportedError: the configuration asks for a sum without that norm.
    """
    if not config.flag("use_weighted_layer_sum", False):
        return False
    check_supported(config, tie_last_hidden_states=(True,))
    return True


def audio_classifier(folder: HuggingFaceFolder) -> Head:
    """Labels of a recording: the mean of its vectors, and two linear maps.

    In ``transformers``, the first map comes before the mean, which makes no difference.
    """
    config = folder.config
    projector = NamedDense(
        linear="projector", config=DenseConfig(size=config.positive("classifier_proj_size", 256))
    )
    head = sequence_classifier(folder, projector, pooling=PoolingKind.MEAN)
    table = head.table
    if sums_layers(config):
        table = (*table, Rename("encoder.layer_weights", ("layer_weights",), _softmax))
    return replace(head, table=table, tasks=(Task.CLASSIFY,))


def _softmax(weights: Tensor) -> Tensor:
    return weights.softmax(-1)
