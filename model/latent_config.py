"""The configuration of latent attention. Imports no torch."""

from model.norm_config import NormConfig
from model.position_config import ConfigStruct


class LatentConfig(ConfigStruct, frozen=True, kw_only=True):
    """Keys and values are linear maps of one latent vector per token (:mod:`model.latent`).

    Attributes:
        size: the size of the latent vector.
        query_size: that of another one for queries; None: they are a linear map of the input.
        plain_size: dimensions of a query or key that are not rotated.
        rotated_size: the others; all heads share those of keys.
        value_size: dimensions of a value. A head of the attention has room for either.
        norm: of the latent vectors.
    """

    size: int
    query_size: int | None = None
    plain_size: int
    rotated_size: int
    value_size: int
    norm: NormConfig
