"""Passes the inputs of a model's linear maps to an observer while the model runs."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from export.decoding import eager_source_states
from export.image_sources import ImageSource
from export.speech import Source, SpeechWindow
from model.basics import Linear
from model.config import Kind, ModelConfig
from model.images import Pixels
from model.kernels import Step
from model.transformer import Transformer, from_weights
from model.waveform import Waveforms

# Called with the name of a linear map and its inputs [..., channels].
Observer = Callable[[str, Tensor], None]
# The inputs of a model: rows of token ids, images, rows with an image each, or speech. Images are
# sources in an encoder-decoder.
Samples = Sequence[list[int] | Pixels | tuple[list[int], Pixels] | ImageSource | SpeechWindow]


def linear_maps(config: ModelConfig) -> list[str]:
    """The names of all linear maps: their weights' names without ``.weight``."""
    with torch.device("meta"):
        model = Transformer(config)
    return [name for name, module in model.named_modules() if isinstance(module, Linear)]


def observe_inputs(
    config: ModelConfig,
    weights: dict[str, Tensor],
    samples: Samples,
    observe: Observer,
    targets: Sequence[list[int]] = (),
) -> None:
    """Runs the eager module over ``samples``, each alone and without padding.

    Args:
        targets: the decoder's inputs in an encoder-decoder; default: the samples, or the targets
            of images and speech.
    """
    model = from_weights(config, weights)
    with torch.inference_mode(), _observed(model, observe):
        for index, sample in enumerate(samples):
            if isinstance(sample, np.ndarray):
                model.encode_images(torch.from_numpy(np.stack([sample])))
            elif isinstance(sample, tuple):
                ids, lengths, segments = _texts(model, sample[0])
                model.encode_pairs(ids, lengths, torch.from_numpy(sample[1][None]), segments)
            elif isinstance(sample, SpeechWindow) and config.kind == Kind.ENCODER:
                model.encode_waveforms(Waveforms.whole(torch.from_numpy(sample.samples[None])))
            elif isinstance(sample, list) and config.kind == Kind.ENCODER:
                model.encode(*_texts(model, sample))
            else:
                own = sample if isinstance(sample, list) else sample.target
                _run(model, sample, targets[index] if targets else own)


def _run(model: Transformer, source: Source, target: list[int]) -> None:
    source_lengths, states = None, None
    if model.config.kind == Kind.ENCODER_DECODER:
        source_lengths = torch.tensor([len(source)], dtype=torch.int32)
        states = eager_source_states(model, source)
    step = Step.whole(torch.tensor([len(target)]), source_lengths)
    model.decode(torch.tensor([target]), step, states)


def _texts(model: Transformer, row: list[int]) -> tuple[Tensor, Tensor, Tensor | None]:
    """Ids, length and segments of one row, as a batch of one."""
    ids, lengths = torch.tensor([row]), torch.tensor([len(row)], dtype=torch.int32)
    segments = torch.zeros_like(ids) if model.config.num_segments else None
    return ids, lengths, segments


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
