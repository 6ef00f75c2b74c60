"""How many layers each token runs, as a frozen value. Imports no torch."""

from model.position_config import ConfigStruct


class HaltingConfig(ConfigStruct, frozen=True, kw_only=True):
    """Adaptive computation time (Graves 2016): see :mod:`model.adaptive`.

    A token halts when its halting probabilities sum to ``1 - epsilon``.
    """

    epsilon: float = 0.01
