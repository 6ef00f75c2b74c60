"""LED (Beltagy et al. 2020, section 7): BART whose encoder is Longformer's, for long documents.

The first token of a source is global, as in the paper; ``transformers`` leaves that to the caller.
"""

import re

import msgspec

from export.checkpoint import Checkpoint
from export.errors import UnsupportedError
from export.importers.bart_tables import BartVariant, import_model, model_config
from export.importers.longformer import DEFAULT_GLOBAL_TOKENS, windowed
from export.importers.renaming import Rename, linear, per_layer
from export.importers.support import MAX_TABLE_POSITIONS
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from model.bundle import Task
from model.config import ModelConfig, NormOrder, StackConfig
from model.position_config import PositionKind

VARIANT = BartVariant(
    architecture="LEDForConditionalGeneration",
    tasks=(Task.GENERATE,),
    order=NormOrder.POST,
    positions=PositionKind.LEARNED,
    num_unused_positions=0,
    embedding_norm=True,
)
_TARGET = "encoder.layers.{n}.mixer.global_tokens"
_SELF = "led.encoder.layers.{n}.self_attn.longformer_self_attn"
GLOBAL_TOKENS = (
    *linear(f"{_TARGET}.query", f"{_SELF}.query_global", bias=True),
    *linear(f"{_TARGET}.key_value", f"{_SELF}.key_global", f"{_SELF}.value_global", bias=True),
)
# Parts of the encoder's attention, by BART's names.
ATTENTION = {
    "q_proj": "longformer_self_attn.query",
    "k_proj": "longformer_self_attn.key",
    "v_proj": "longformer_self_attn.value",
    "out_proj": "output",
}


def import_led(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``LEDForConditionalGeneration`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    model = _model(folder.config)
    number = 0 if model.encoder is None else len(model.encoder.layers)
    table: list[Rename] = per_layer(GLOBAL_TOKENS, number)
    return import_model(folder, VARIANT, model, table, _own_name)


def _model(config: Fields) -> ModelConfig:
    """BART with a windowed encoder, which has positions of its own."""
    sizes = {
        side: config.positive(
            f"max_{side}_position_embeddings", default, maximum=MAX_TABLE_POSITIONS
        )
        for side, default in (("encoder", 16384), ("decoder", 1024))
    }
    if sizes["encoder"] < sizes["decoder"]:
        raise UnsupportedError(
            f"{config.origin}: max_decoder_position_embeddings {sizes['decoder']} is not "
            f"supported; supported: up to those of the encoder, {sizes['encoder']}"
        )
    fields = {**config, "max_position_embeddings": sizes["decoder"]}
    model = model_config(Fields(fields, config.origin), VARIANT)
    if model.encoder is None:
        raise ValueError("LED has an encoder")
    layers = model.encoder.layers
    encoder = StackConfig(
        layers=windowed(config, layers[0], len(layers), DEFAULT_GLOBAL_TOKENS),
    )
    position = msgspec.structs.replace(model.position, max_source_positions=sizes["encoder"])
    return msgspec.structs.replace(model, encoder=encoder, position=position)


def _own_name(name: str) -> str:
    """LED's name of a weight, by BART's."""
    name = re.sub("^model[.]", "led.", name)
    return re.sub(
        r"(?<=^led[.]encoder[.])(layers[.]\d+[.]self_attn)[.](\w+_proj)(?=[.])",
        lambda match: f"{match[1]}.{ATTENTION[match[2]]}",
        name,
    )
