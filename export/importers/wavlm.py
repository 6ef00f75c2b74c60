"""WavLM (Chen et al. 2022), as ``transformers`` saves it: Wav2Vec2 with gated position biases."""

import torch
from msgspec import structs
from torch import Tensor

from export.checkpoint import Checkpoint
from export.errors import UnsupportedError
from export.importers.bert_tables import multi_head, num_layers
from export.importers.renaming import Rename, per_layer
from export.importers.wav2vec2 import import_with_weight_norm
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from model.position_config import RelativeBiasConfig, RelativeBiasKind

ATTENTION = "encoder.layers.{n}.attention"
NUM_GATES = 2


def import_wavlm(folder: HuggingFaceFolder) -> Checkpoint:
    """The model in ``folder``, which transcribes or classifies, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    check_supported(config, add_adapter=(False,))
    attention = structs.replace(multi_head(config), bias=_bias(config), gates_bias=True)
    gate = "encoder.layers.{n}.mixer.bias_gate"
    linear = f"{ATTENTION}.gru_rel_pos_linear"
    gates = (
        Rename(f"{gate}.map.weight", (f"{linear}.weight",), _gate_sums),
        Rename(f"{gate}.map.bias", (f"{linear}.bias",), _gate_sums),
        Rename(f"{gate}.scale", (f"{ATTENTION}.gru_rel_pos_const",), torch.flatten),
    )
    table = [
        Rename(
            "encoder.positions.biases.0.weight",
            ("encoder.layers.0.attention.rel_attn_embed.weight",),
        ),
        *per_layer(gates, num_layers(config)),
    ]
    return import_with_weight_norm(folder, "wavlm", "WavLM", attention=attention, table=table)


def _bias(config: Fields) -> RelativeBiasConfig:
    """The bias of the first layer, which all layers share."""
    num_buckets = config.positive("num_buckets", 320)
    max_distance = config.positive("max_bucket_distance", 800, maximum=1 << 16)
    if num_buckets % 2 or num_buckets < 4 or max_distance <= num_buckets // 4:
        raise UnsupportedError(
            f"{config.origin}: num_buckets {num_buckets} with max_bucket_distance {max_distance} "
            "is not supported; supported: an even number of 4 or more, and a distance of more than "
            "a quarter of it"
        )
    return RelativeBiasConfig(
        kind=RelativeBiasKind.BUCKETS, num_buckets=num_buckets, max_distance=max_distance
    )


def _gate_sums(parts: Tensor) -> Tensor:
    """Each gate is the sum of its outputs: ``[8, size]`` to ``[size, 2]``, ``[8]`` to ``[2]``."""
    return torch.stack([part.sum(0) for part in parts.chunk(NUM_GATES)], -1)
