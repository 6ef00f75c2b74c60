"""Parity of models of images with ``transformers``; :mod:`tests.families.harness` has texts.

The pictures have other sizes than the model's images: ours are read from their files by the
bundle's description, theirs by the image processor that was saved beside the model.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor
from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from export.checkpoint import Checkpoint
from export.encoding import EncoderInputs, encode_in_graph
from export.graphs import export_graphs
from export.parity_reference import TOLERANCE, ParityReference
from export.runtime import Floats, Session
from export.smooth_quant import smooth_activations
from export.sources import load_checkpoint
from model.images import Pixels, decode_image, encode_png
from model.layers import full_lengths
from model.transformer import from_weights
from scripts.families import Family
from tests.families.decoder_check import ROW_TOLERANCE, max_errors
from tests.families.harness import saved
from tests.families.rows import operators_of, record_family, sizes_of

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 80,
    "image_size": 24,
    "patch_size": 6,
}
SHAPES = ((30, 41), (24, 24), (17, 9))  # of pictures
AXES: dict[str, st.SearchStrategy[Any]] = {
    "num_hidden_layers": st.integers(1, 3),
    "num_attention_heads": st.sampled_from((1, 2, 8)),
    "intermediate_size": st.sampled_from((48, 96)),
    "hidden_act": st.sampled_from(("gelu", "gelu_new", "relu")),
    "layer_norm_eps": st.sampled_from((1e-12, 1e-2)),
    "patch_size": st.sampled_from((4, 12, 24)),
    "num_channels": st.sampled_from((1, 3)),
}

# The graph's first output for pixel values ``[batch, channels, height, width]``.
Expected = Callable[[Any, Tensor], Tensor]


def class_token(model: Any, pixel_values: Tensor) -> Tensor:
    """The first token's vector, after the last norm."""
    token: Tensor = model(pixel_values).last_hidden_state[:, 0]
    return token


def logits(model: Any, pixel_values: Tensor) -> Tensor:
    """Returns the logits of an image's labels."""
    values: Tensor = model(pixel_values).logits
    return values


def square_processor(side: int, num_channels: int = 3) -> Any:
    """Of ViT: both sides are resized."""
    return ViTImageProcessorPil(
        size={"height": side, "width": side},
        image_mean=[0.4] * num_channels,
        image_std=[0.3] * num_channels,
    )


def cropping_processor(side: int) -> Any:
    """Of BiT and CLIP: the shorter edge is resized, and the middle cut out."""
    return BitImageProcessorPil(size=side + 3, crop_size=side)


@dataclass(frozen=True)
class Case:
    """An imported model, pictures as its graph takes them, and the outputs of ``transformers``."""

    checkpoint: Checkpoint
    images: list[Pixels]
    reference_outputs: list[Floats]


@contextmanager
def case(
    model: Any, processor: Any, expected: Expected, tower: str | None = None, seed: int = 0
) -> Iterator[Case]:
    """Saves ``model`` with random weights and ``processor``, and imports both."""
    with saved(model, seed) as folder:
        processor.save_pretrained(folder)
        checkpoint = load_checkpoint(str(folder), tower)
        assert checkpoint.image is not None
        channels = checkpoint.image.num_channels
        rng = np.random.default_rng(seed)
        pictures = [rng.integers(0, 256, (*shape, channels)).astype(np.uint8) for shape in SHAPES]
        images = [decode_image(encode_png(picture), checkpoint.image) for picture in pictures]
        outputs = []
        for picture in pictures:
            opened = Image.fromarray(picture if channels == 3 else picture[..., 0])
            values = processor(opened, return_tensors="pt")["pixel_values"]
            outputs.append(expected(model, values.float())[0].numpy())
        yield Case(checkpoint, images, outputs)


def check_eager(
    model: Any, processor: Any, expected: Expected = class_token, tower: str | None = None
) -> float:
    """Compares the eager module with ``model``, before and after smoothing.

    Returns:
        the largest absolute error
    """
    with case(model, processor, expected, tower) as given:
        config, weights = given.checkpoint.config, given.checkpoint.weights
        pixels, errors = torch.from_numpy(np.stack(given.images)), []
        for each in (weights, smooth_activations(config, weights, given.images)):
            module = from_weights(config, each).double()
            hidden = module.encode_images(pixels)
            outputs = list(module.pool(hidden, full_lengths(hidden)).numpy())
            errors += max_errors(outputs, given.reference_outputs)
        assert max(errors) <= TOLERANCE, f"{max(errors):.2e} from transformers"
        return max(errors)


def check_graphs(
    family: str,
    model: Any,
    processor: Any,
    expected: Expected = class_token,
    tower: str | None = None,
) -> Family:
    """Compares the exported fp32 graphs with ``model`` and records the row of ``family``."""
    with (
        case(model, processor, expected, tower) as given,
        tempfile.TemporaryDirectory() as folder,
    ):
        directory, config = Path(folder), given.checkpoint.config
        graphs = export_graphs(config, given.checkpoint.weights, directory)
        session = Session(directory, graphs["encode"])

        def run(images: list[Pixels]) -> list[Floats]:
            inputs = EncoderInputs([], None, images)
            return [outputs[0] for outputs in encode_in_graph(session, inputs)]

        batched = run(given.images)
        error = max(max_errors(batched, given.reference_outputs))
        assert error <= TOLERANCE, f"{error:.2e} from transformers"
        alone = [run([image])[0] for image in given.images]
        assert max(max_errors(batched, alone)) <= ROW_TOLERANCE, "an image depends on its batch"
        inputs = EncoderInputs([], None, given.images)
        reference = ParityReference(given.reference_outputs, error, 0, 0, encoder_inputs=inputs)
        row = Family(family=family, kind=config.kind, max_absolute_error=error)
        return record_family(
            msgspec.structs.replace(
                row,
                operators=operators_of(directory, graphs),
                bytes_by_precision=sizes_of(config, reference, directory, graphs),
            )
        )
