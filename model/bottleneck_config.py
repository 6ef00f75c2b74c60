"""The configuration of layers with a bottleneck. Imports no torch."""

from model.position_config import ConfigStruct


class BottleneckConfig(ConfigStruct, frozen=True, kw_only=True):
    """A layer that is narrower than its input and output (:mod:`model.bottleneck`).

    Attributes:
        size: the size of vectors inside the layer.
        num_feed_forwards: the number of feed-forwards after the attention.
    """

    size: int
    num_feed_forwards: int
