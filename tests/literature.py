"""Encoders of the literature, with which tests of batching run."""

import msgspec

from model.config import Activation, HaltingConfig, StackConfig
from model.position_config import PositionKind, SignalKind
from tests.architectures import BERT, longformer, stack

# Longformer without global tokens, with its first token, and with up to 5 before a separator.
LITERATURE = {
    "windows": longformer(0),
    "longformer-first": longformer(1),
    "longformer-question": longformer(5, global_before=7),
    "adaptive": msgspec.structs.replace(
        BERT,
        position=msgspec.structs.replace(BERT.position, kind=PositionKind.NONE),
        encoder=StackConfig(
            layers=stack(activation=Activation.GELU).layers[:1],
            order=(0,) * 4,
            signal=SignalKind.SINUSOIDAL,
            halting=HaltingConfig(),
        ),
    ),
}
