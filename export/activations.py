"""Shows the inputs of a model's linear maps, on text, to who measures them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from model.basics import Linear
from model.config import Kind, ModelConfig
from model.kernels import Step
from model.transformer import Transformer, from_weights

# Called with the name of a linear map and its inputs [..., channels].
Observer = Callable[[str, Tensor], None]


def linear_maps(config: ModelConfig) -> list[str]:
    """The names of all linear maps: those of their weights without ``.weight``."""
    with torch.device("meta"):
        model = Transformer(config)
    return [name for name, module in model.named_modules() if isinstance(module, Linear)]


def observe_inputs(
    config: ModelConfig,
    weights: dict[str, Tensor],
    rows: Sequence[list[int]],
    observe: Observer,
    targets: Sequence[list[int]] | None = None,
) -> None:
    """Runs the eager module over ``rows`` of token ids, each alone and without padding.

    Args:
        targets: of an encoder-decoder, what the decoder reads; default: the rows.
    """
    model = from_weights(config, weights)
    with torch.inference_mode(), _observed(model, observe):
        for row, target in zip(rows, targets or rows, strict=True):
            ids, lengths = torch.tensor([row]), torch.tensor([len(row)], dtype=torch.int32)
            source_lengths, states = None, None
            if config.kind == Kind.ENCODER:
                segments = torch.zeros_like(ids) if config.embedding.num_segments else None
                model.encode(ids, lengths, segments)
                continue
            if config.kind == Kind.ENCODER_DECODER:
                source_lengths, states = lengths, model.encode_source(ids, lengths)
            step = Step.whole(torch.tensor([len(target)]), source_lengths)
            model.decode(torch.tensor([target]), step, states)


@contextmanager
def _observed(model: nn.Module, observe: Observer) -> Iterator[None]:
    handles = [
        module.register_forward_pre_hook(lambda _, inputs, name=name: observe(name, inputs[0]))
        for name, module in model.named_modules()
        if isinstance(module, Linear)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
