"""The eager module in double precision: all of it, or each part while it runs."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from export.offload import LARGE_BYTES, num_bytes
from model.config import ModelConfig
from model.transformer import Transformer, from_weights


def in_double(config: ModelConfig, weights: Mapping[str, Tensor]) -> Transformer:
    """A model for inference that computes in double precision.

    A large one holds ``weights`` as they are; each module's become double while it runs.
    """
    model = from_weights(config, dict(weights))
    if num_bytes(weights) < LARGE_BYTES:
        return model.double()
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_floating_point():
                setattr(module, name, buffer.double())
        module.register_forward_pre_hook(_Widen())
    return model


class _Widen:
    """Before a module runs: its arguments and its own weights become double; then no more."""

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        own = dict(module.named_parameters(recurse=False))
        for name, weight in own.items():
            module._parameters[name] = nn.Parameter(weight.double(), requires_grad=False)
        if own:
            handle: RemovableHandle | None = None

            def narrow(module: nn.Module, _inputs: Any, _output: Any) -> None:
                module._parameters.update(own)
                if handle is not None:
                    handle.remove()

            handle = module.register_forward_hook(narrow)
        return tuple(_double(value) for value in inputs)


def _double(value: Any) -> Any:
    if isinstance(value, Tensor) and value.dtype == torch.float32:
        return value.double()
    return value
