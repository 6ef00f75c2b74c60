"""The configuration of mixtures of experts, as frozen values. Imports no torch."""

from model.position_config import ConfigStruct


class ClampedGateConfig(ConfigStruct, frozen=True, kw_only=True):
    """``g * sigmoid(slope * g) * (v + 1)`` for a gate ``g`` and a value ``v`` (gpt-oss).

    ``g`` is at most ``limit``, ``v`` between ``-limit`` and ``limit``.
    """

    slope: float
    limit: float


class SharedExpertConfig(ConfigStruct, frozen=True, kw_only=True):
    """An expert of every token, beside its top ones (Dai et al. 2024, DeepSeekMoE, section 3.2).

    ``has_gate``: its output is multiplied by the sigmoid of a linear map of the token (Qwen2-MoE).
    """

    inner_size: int
    has_gate: bool = False


class RoutingConfig(ConfigStruct, frozen=True, kw_only=True):
    """Experts chosen by their score plus a bias that balances them (Wang et al. 2024).

    The score is the softmax of the router's logits, or of each one the sigmoid if ``has_sigmoid``
    (DeepSeek-AI 2024, DeepSeek-V3, section 2.1.2). It is also the weight of a chosen expert, times
    ``scale``; the bias is not part of it. Experts are in ``num_groups`` groups of the same size;
    only those in the ``active_groups`` best can be chosen. A group is as good as the sum of its
    ``group_top`` best experts.
    """

    has_sigmoid: bool = False
    num_groups: int = 1
    active_groups: int = 1
    group_top: int = 2
    scale: float = 1.0


class ExpertsConfig(ConfigStruct, frozen=True, kw_only=True):
    """``count`` feed-forwards; each token goes through its top ``active`` (Shazeer et al. 2017).

    Their outputs are weighted with the router's probabilities, which sum to 1 over the active
    experts if ``normalized``. ``router_bias``: the router has a bias. ``capacity``: an expert
    returns 0 for all but the first ``capacity`` of a text's tokens that it is best for (Fedus et
    al. 2021, section 2.2); only in encoders, with one active expert. ``clamped_gate``: what gated
    experts compute instead of ``activation(g) * v``. ``sparse_mixer_noise``: two active experts
    have the weights of :func:`model.experts.sparse_mixer` with this noise instead. ``routing``:
    experts are not those with the largest logits.
    """

    count: int
    active: int
    normalized: bool
    router_bias: bool = False
    capacity: int | None = None
    clamped_gate: ClampedGateConfig | None = None
    sparse_mixer_noise: float | None = None
    routing: RoutingConfig | None = None
    shared: SharedExpertConfig | None = None
