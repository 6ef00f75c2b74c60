"""Parity of models that write texts about images with ``transformers``.

Pictures are read as in :mod:`tests.families.images`.
"""

import tempfile
from collections.abc import Iterator
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
from export.image_sources import ImageSource
from export.parity_reference import TOLERANCE
from export.smooth_quant import smooth_activations
from export.sources import load_checkpoint
from export.speech import Source
from model.images import decode_image, encode_png
from model.kernels import Step
from model.transformer import from_weights
from scripts.families import Family
from tests.families.decoder_check import check_decoder
from tests.families.harness import saved
from tests.families.images import SHAPES
from tests.families.rows import operators_of, record_family, sizes_of

TARGETS = ([5], [6, 7, 8], [9, 10])  # after the decoder's start token


@dataclass(frozen=True)
class Case:
    """An imported model, its sources, and what ``transformers`` reads for each of them."""

    checkpoint: Checkpoint
    sources: list[ImageSource]
    values: list[dict[str, torch.Tensor]]

    def read(self, source: Source) -> dict[str, torch.Tensor]:
        """The arguments of the model of ``transformers`` for ``source``."""
        return next(x for x, own in zip(self.values, self.sources, strict=True) if own is source)


@contextmanager
def case(model: Any, processor: Any, seed: int = 0) -> Iterator[Case]:
    """Saves ``model`` with random weights and ``processor``, and imports both."""
    with saved(model, seed) as folder:
        processor.save_pretrained(folder)
        checkpoint = load_checkpoint(str(folder))
        spec, start = checkpoint.image, checkpoint.special_tokens.decoder_start
        assert spec is not None
        assert start is not None
        rng, sources, values = np.random.default_rng(seed), [], []
        for shape, target in zip(SHAPES, TARGETS, strict=True):
            picture = rng.integers(0, 256, (*shape, spec.num_channels)).astype(np.uint8)
            pixels = decode_image(encode_png(picture), spec)
            sources.append(ImageSource(pixels, spec.num_tokens, [start, *target]))
            opened = Image.fromarray(picture if spec.num_channels == 3 else picture[..., 0])
            read = processor(opened, return_tensors="pt")["pixel_values"]
            values.append({"pixel_values": read.float()})
        yield Case(checkpoint, sources, values)


def check_eager(model: Any, processor: Any) -> None:
    """Compares the eager module with ``model``, before and after smoothing."""
    with case(model, processor) as given:
        config, weights = given.checkpoint.config, given.checkpoint.weights
        for each in (weights, smooth_activations(config, weights, given.sources)):
            module = from_weights(config, each).double()
            for source in given.sources:
                ids = torch.tensor([source.target])
                expected = model(**given.read(source), decoder_input_ids=ids).logits
                states = module.encode_image_source(torch.from_numpy(np.stack([source.pixels])))
                lengths = torch.tensor([len(source)], dtype=torch.int32)
                step = Step.whole(torch.tensor([ids.shape[1]]), lengths)
                actual = module.logits(module.decode(ids, step, states).hidden)
                error = float((actual - expected).abs().max())
                assert error <= TOLERANCE, f"{error:.2e} from transformers"


def check_graphs(family: str, model: Any, processor: Any) -> Family:
    """Compares the exported fp32 graphs with ``model`` and records the row of ``family``."""
    with case(model, processor) as given, tempfile.TemporaryDirectory() as folder:
        directory, config = Path(folder), given.checkpoint.config
        graphs = export_graphs(config, given.checkpoint.weights, directory)
        rows = [source.target[1:] for source in given.sources]
        checked = check_decoder(
            model, given.checkpoint, rows, directory, graphs, given.sources, given.read
        )
        row = msgspec.structs.replace(
            checked.row,
            family=family,
            operators=operators_of(directory, graphs),
            bytes_by_precision=sizes_of(config, checked.reference, directory, graphs),
        )
        return record_family(row)
