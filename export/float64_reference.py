"""The eager module in float64, the reference of the parity check.

A large model keeps its weights in fp32; each module converts its own while it runs.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from export.offload import LARGE_BYTES, num_bytes
from model.config import ModelConfig
from model.transformer import Transformer, from_weights


def float64_model(config: ModelConfig, weights: Mapping[str, Tensor]) -> Transformer:
    """A model for inference that computes in float64."""
    model = from_weights(config, dict(weights))
    if num_bytes(weights) < LARGE_BYTES:
        return model.double()
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_floating_point():
                setattr(module, name, buffer.double())
        module.register_forward_pre_hook(_RunInFloat64())
    return model


class _RunInFloat64:
    """Forward pre-hook: converts a module's arguments and weights; restores the weights after."""

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        weights = dict(module.named_parameters(recurse=False))
        for name, weight in weights.items():
            module._parameters[name] = nn.Parameter(weight.double(), requires_grad=False)
        if weights:
            handle: RemovableHandle | None = None

            def restore(module: nn.Module, _inputs: Any, _output: Any) -> None:
                module._parameters.update(weights)
                if handle is not None:
                    handle.remove()

            handle = module.register_forward_hook(restore)
        return tuple(_to_float64(value) for value in inputs)


def _to_float64(value: Any) -> Any:
    if isinstance(value, Tensor) and value.dtype == torch.float32:
        return value.double()
    return value
