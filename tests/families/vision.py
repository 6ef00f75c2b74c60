"""Parity of decoders that read images in their prompts; :mod:`tests.families.harness` has texts.

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
from PIL import Image

from export.checkpoint import Checkpoint
from export.graphs import export_graphs
from export.parity_reference import TOLERANCE
from export.prompt_images import PlacedImage, eager_images, encode_eagerly
from export.sources import load_checkpoint
from model.images import encode_png, open_image
from model.kernels import Step
from model.tiles import to_tiles
from model.transformer import from_weights
from scripts.families import Family
from tests.families.decoder_check import check_decoder
from tests.families.harness import saved
from tests.families.rows import operators_of, record_family, sizes_of

# What a model of ``transformers`` takes for pictures, which its processor reads.
ReadPictures = Callable[[Any, list[Any]], dict[str, torch.Tensor]]

SIDE = 24
CLIP: dict[str, Any] = {
    "model_type": "clip_vision_model",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": SIDE,
    "patch_size": 8,
}
SIGLIP = CLIP | {"model_type": "siglip_vision_model"}
IMAGE_TOKEN = 5
SHAPES = ((30, 41), (24, 24), (17, 9))  # of pictures
# Tokens of texts between the pictures of a prompt: of none, one, and two.
PROMPTS = ((13,), (2, 5), (1, 4, 3))


@dataclass(frozen=True)
class Case:
    """An imported model, prompts, their images, and what ``transformers`` takes for these."""

    checkpoint: Checkpoint
    rows: list[list[int]]
    images: list[list[PlacedImage]]
    more: list[dict[str, torch.Tensor]]


def batched(processor: Any, pictures: list[Any]) -> dict[str, torch.Tensor]:
    """What models take that read each picture as one image."""
    return {"pixel_values": processor(pictures, return_tensors="pt")["pixel_values"]}


def nested(processor: Any, pictures: list[Any]) -> dict[str, torch.Tensor]:
    """What models take that read tiles, of one prompt."""
    values = processor([pictures], return_tensors="pt")
    return {name: values[name] for name in ("pixel_values", "pixel_attention_mask")}


@contextmanager
def case(model: Any, processor: Any, read: ReadPictures = batched, seed: int = 0) -> Iterator[Case]:
    """Saves ``model`` with random weights and its image ``processor``, and imports both.

    ``read``: what ``model`` takes for pictures.
    """
    with saved(model, seed) as folder:
        processor.save_pretrained(folder)
        checkpoint = load_checkpoint(str(folder))
        spec = checkpoint.image
        assert spec is not None
        rng = np.random.default_rng(seed)
        rows: list[list[int]] = []
        images: list[list[PlacedImage]] = []
        more: list[dict[str, torch.Tensor]] = []
        for sizes in PROMPTS:
            row: list[int] = []
            placed, opened = [], []
            for index, size in enumerate(sizes):
                row += rng.integers(IMAGE_TOKEN + 1, 40, size).tolist()
                if index + 1 == len(sizes):
                    break
                picture = rng.integers(0, 256, (*SHAPES[index], 3)).astype(np.uint8)
                opened.append(Image.fromarray(picture))
                for tile in to_tiles(open_image(encode_png(picture)), spec).images:
                    row.append(IMAGE_TOKEN - 1)  # so that each tile has a token before it
                    placed.append(PlacedImage(len(row), tile))
                    row += [IMAGE_TOKEN] * spec.num_tokens
            rows.append(row)
            images.append(placed)
            more.append(read(processor, opened) if opened else {})
        yield Case(checkpoint, rows, images, more)


def check_eager(model: Any, processor: Any, read: ReadPictures = batched) -> float:
    """Compares the eager module's logits of each prompt with those of ``model``.

    Returns:
        the largest absolute error
    """
    with case(model, processor, read) as given:
        module = from_weights(given.checkpoint.config, given.checkpoint.weights).double()
        errors = []
        for row, images, more in zip(given.rows, given.images, given.more, strict=True):
            ids = torch.tensor([row])
            placed = eager_images(encode_eagerly(module, [images]), len(row))
            hidden = module.decode(ids, Step.whole(torch.tensor([len(row)])), images=placed).hidden
            errors.append(float((module.logits(hidden) - model(ids, **more).logits).abs().max()))
        assert max(errors) <= TOLERANCE, f"{max(errors):.2e} from transformers"
        return max(errors)


def check_graphs(family: str, model: Any, processor: Any, read: ReadPictures = batched) -> Family:
    """Compares the exported fp32 graphs with ``model`` and records the row of ``family``."""
    with (
        case(model, processor, read) as given,
        tempfile.TemporaryDirectory() as folder,
    ):
        directory, checkpoint = Path(folder), given.checkpoint
        graphs = export_graphs(checkpoint.config, checkpoint.weights, directory)
        checked = check_decoder(
            *(model, checkpoint, given.rows, directory, graphs),
            images=given.images,
            more=given.more,
        )
        row = msgspec.structs.replace(
            checked.row,
            family=family,
            operators=operators_of(directory, graphs),
            bytes_by_precision=sizes_of(checkpoint.config, checked.reference, directory, graphs),
        )
        return record_family(row)
