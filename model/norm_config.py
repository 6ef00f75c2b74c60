"""The configuration of norms. Imports no torch."""

from model.position_config import ConfigStruct
from model.variants import NormKind


class NormConfig(ConfigStruct, frozen=True, kw_only=True):
    kind: NormKind
    epsilon: float
    bias: bool = True  # layer norm only
