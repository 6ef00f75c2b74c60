"""Mixture of experts: a feed-forward in which each token goes through a few experts."""

import torch
from msgspec import structs
from torch import Tensor, nn

from model.basics import Linear
from model.config import ExpertsConfig, FeedForwardConfig, RoutingConfig, SharedExpertConfig
from model.kernels import ExpertWeights, ModelKernels
from model.mlp import MLP


class Experts(nn.Module):
    """One linear map per expert, with ``weight [experts, outputs, inputs]`` as ``MoE`` takes it."""

    def __init__(self, count: int, inputs: int, outputs: int, *, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, outputs, inputs))
        self.bias = nn.Parameter(torch.empty(count, outputs)) if bias else None


UNCHOSEN = -30_000.0  # a router's logit whose probability is 0, also in fp16


def sparse_mixer(scores: Tensor, noise: float) -> Tensor:
    """Weights of two experts, zero for the others: Liu et al. 2024 (GRIN), without sampling.

    Each is the best expert's softmax over those experts whose relative distance from it is at most
    ``2 * noise``; for the second, the first is left out.

    Args:
        scores: ``[..., experts]``, the router's logits.
    """
    weights, left = torch.zeros_like(scores), scores
    for _ in range(2):
        best, index = left.max(-1, keepdim=True)
        distance = (best - scores) / torch.maximum(scores.abs(), best)
        near = left.masked_fill(distance > 2 * noise, UNCHOSEN)
        chosen = torch.zeros_like(scores).scatter(-1, index, 1.0)
        weights = weights + chosen * near.softmax(-1)
        left = left.masked_fill(chosen > 0, UNCHOSEN)
    return weights


def top_mask(scores: Tensor, count: int) -> Tensor:
    """Whether each of ``scores [..., n]`` is among the ``count`` largest, bool."""
    best = scores.topk(count, -1).indices
    return torch.zeros_like(scores).scatter(-1, best, 1.0) > 0


def biased_weights(
    logits: Tensor, bias: Tensor, experts: ExpertsConfig, routing: RoutingConfig
) -> Tensor:
    """Scores of the chosen experts, zero for the others; see :class:`RoutingConfig`.

    Args:
        logits: ``[..., experts]``, the router's.
        bias: ``[experts]``
    """
    scores = logits.sigmoid() if routing.has_sigmoid else logits.softmax(-1)
    ranks = scores + bias
    if routing.active_groups < routing.num_groups:
        groups = ranks.reshape(*ranks.shape[:-1], routing.num_groups, -1)
        quality = groups.topk(routing.group_top, -1).values.sum(-1)  # [..., groups]
        is_active = top_mask(quality, routing.active_groups)
        ranks = groups.masked_fill(~is_active[..., None], UNCHOSEN).flatten(-2)
    return scores.masked_fill(~top_mask(ranks, experts.active), 0.0)


class SharedExpert(MLP):
    """The expert that every token goes through; see :class:`SharedExpertConfig`."""

    def __init__(
        self, hidden_size: int, config: FeedForwardConfig, shared: SharedExpertConfig
    ) -> None:
        super().__init__(hidden_size, structs.replace(config, inner_size=shared.inner_size))
        self.gate = Linear(hidden_size, 1, bias=False) if shared.has_gate else None

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y if self.gate is None else torch.sigmoid(self.gate(x)) * y


class MixtureOfExperts(nn.Module):
    """Shazeer et al. 2017, without noise: the sum of the top-k experts, weighted by a softmax.

    The outputs of a gated ``input`` are interleaved: gate, value, gate, value. A shared expert is
    added.

    Raises:
        ValueError: a capacity with several active experts.
    """

    def __init__(
        self,
        hidden_size: int,
        config: FeedForwardConfig,
        experts: ExpertsConfig,
        kernels: ModelKernels,
    ) -> None:
        super().__init__()
        if experts.capacity is not None and experts.active != 1:
            raise ValueError(f"experts with a capacity have 1 active expert, not {experts.active}")
        self.config, self.experts, self.kernels = config, experts, kernels
        width = config.inner_size * (2 if config.gated else 1)
        self.router = Linear(hidden_size, experts.count, bias=experts.router_bias)
        self.input = Experts(experts.count, hidden_size, width, bias=config.bias)
        self.output = Experts(experts.count, config.inner_size, hidden_size, bias=config.bias)
        self.choice_bias: nn.Parameter | None = None
        if experts.routing is not None:
            self.choice_bias = nn.Parameter(torch.empty(experts.count))
        shared = experts.shared
        self.shared = None if shared is None else SharedExpert(hidden_size, config, shared)

    def forward(self, x: Tensor) -> Tensor:
        routed = self._routed(x)
        return routed if self.shared is None else routed + self.shared(x)

    def _routed(self, x: Tensor) -> Tensor:
        weights = ExpertWeights(
            self.input.weight, self.input.bias, self.output.weight, self.output.bias
        )
        scores = self.router(x)
        mixed = self._expert_weights(scores)
        if mixed is not None:
            # The kernels' weights are a softmax of logits, so their sum is 1.
            logits = torch.where(mixed > 0, mixed.log(), UNCHOSEN)
            normalized = structs.replace(self.experts, normalized=True)
            y = self.kernels.experts(x, logits, weights, self.config, normalized)
            if self.experts.routing is not None and self.experts.routing.scale != 1:
                y = self.experts.routing.scale * y
            return y if self.experts.normalized else mixed.sum(-1, keepdim=True) * y
        y = self.kernels.experts(x, scores, weights, self.config, self.experts)
        if self.experts.capacity is None:
            return y
        return y.masked_fill(~within_capacity(scores, self.experts.capacity), 0.0)

    def _expert_weights(self, scores: Tensor) -> Tensor | None:
        """Weights of all experts, zero for those not chosen; None if the kernels choose them."""
        if (noise := self.experts.sparse_mixer_noise) is not None:
            return sparse_mixer(scores, noise)
        if self.experts.routing is not None and self.choice_bias is not None:
            return biased_weights(scores, self.choice_bias, self.experts, self.experts.routing)
        return None


def within_capacity(scores: Tensor, capacity: int) -> Tensor:
    """Whether each token is among the first ``capacity`` of its text that its best expert gets.

    Tokens after it do not count, so padding does not.

    Args:
        scores: ``[batch, length, experts]``.

    Returns:
        ``[batch, length, 1]``, bool
    """
    best = scores.argmax(-1, keepdim=True)
    is_best = best == torch.arange(scores.shape[2])
    return is_best.int().cumsum(1).gather(2, best) <= capacity
