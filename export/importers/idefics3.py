"""Idefics 3 (Laurençon et al. 2024) and SmolVLM (Marafioti et al. 2025), as in ``transformers``."""

from dataclasses import replace

import torch
from torch import Tensor

from export.checkpoint import Checkpoint
from export.errors import SourceError
from export.importers import siglip
from export.importers.encoders import Body
from export.importers.language_models import Wrapper, import_language_model
from export.importers.llama import import_llama
from export.importers.renaming import linear
from export.importers.vision import Connector, image_token_text, part_of, with_vision
from export.importers.vit_tables import image_size, read_patch_size
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.readers.image_processor import ImageProcessor, read_tiling_processor
from model.config import DenseConfig
from model.image_config import ImagePrompt
from model.vision_config import PatchMerge

TOWER, CONNECTOR, POSITIONS = "vision_model.", "connector.", "embedding.positions.weight"
# Defaults of the configurations' classes.
TEXT_DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
}
TOWER_DEFAULTS = {
    "hidden_size": 1152,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "image_size": 224,
    "patch_size": 32,
}
IMAGE_TOKEN, SCALE_FACTOR = 128257, 2
# What processors write around images, by the tokenizer's name for it.
FAKE, GLOBAL = "fake_image_token", "global_image_token"
MARKUP = {FAKE: "<fake_token_around_image>", GLOBAL: "<global-img>"}


def import_idefics3(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``Idefics3ForConditionalGeneration`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    return _import(folder, "Idefics3ForConditionalGeneration")


def import_smolvlm(folder: HuggingFaceFolder) -> Checkpoint:
    """As :func:`import_idefics3`; without videos."""
    return _import(folder, "SmolVLMForConditionalGeneration")


def _import(folder: HuggingFaceFolder, architecture: str) -> Checkpoint:
    config = folder.config
    wrapper = Wrapper(
        architecture=architecture,
        importers={"llama": import_llama},
        defaults=TEXT_DEFAULTS,
        prefixes={"model.text_model.": "model."},
        others=(f"model.{TOWER}", f"model.{CONNECTOR}"),
    )
    decoder = import_language_model(folder, wrapper)
    tower = config.fields("vision_config").with_defaults(**TOWER_DEFAULTS)
    processor = read_tiling_processor(folder, tower.positive("num_channels", 3))
    side = config.positive("scale_factor", SCALE_FACTOR)
    return with_vision(
        decoder,
        _tower(tower, processor, side),
        part_of(folder, (f"model.{TOWER}",)),
        Connector(
            dense=(DenseConfig(size=decoder.config.hidden_size, bias=False),),
            table=tuple(linear("dense.0.linear", "modality_projection.proj", bias=False)),
            merge=PatchMerge.SHUFFLE,
            merge_size=side,
        ),
        part_of(folder, (f"model.{CONNECTOR}",)),
        processor,
        _image_prompt(folder),
    )


def _tower(tower: Fields, processor: ImageProcessor, merge_size: int) -> Body:
    """SigLIP, whose positions are for any number of patches up to those of its training."""
    made = (processor.height, processor.width)
    body = siglip.image_body(
        Fields({**tower, "image_size": processor.height}, tower.origin),
        processor,
        has_final_norm=True,
    )
    size = read_patch_size(tower, TOWER_DEFAULTS["patch_size"])
    trained, per_side = image_size(tower)[0] // size, processor.height // size
    if per_side % merge_size:
        raise SourceError(
            f"{tower.origin}: images of {made} have {per_side} patches a side, which scale_factor "
            f"{merge_size} does not divide"
        )
    rows = _positions(per_side, trained)

    def read(table: Tensor) -> Tensor:
        if len(table) != trained**2:
            raise RuntimeError(f"{len(table)} positions, not {trained**2}")
        return table[rows]

    table = (
        replace(entry, transform=read) if entry.target == POSITIONS else entry
        for entry in body.table
    )
    return replace(body, table=tuple(table))


def _positions(per_side: int, trained: int) -> Tensor:
    """The rows of the position table for a grid of patches, row by row.

    In the tower's own arithmetic: fractions in fp32, whose rounding moves some to another row.
    """
    boundaries = torch.arange(1 / trained, 1.0, 1 / trained)
    step = 1.0 / torch.tensor([per_side])
    fractions = torch.arange(per_side, dtype=torch.float32) * step
    fractions = torch.clamp(fractions, max=1.0 - 1e-6)
    places = torch.bucketize(fractions, boundaries, right=True)
    return (places[:, None] * trained + places).flatten()


def _image_prompt(folder: HuggingFaceFolder) -> ImagePrompt:
    """As the processor expands the image token, which the template writes once."""
    token = folder.config.integer("image_token_id", IMAGE_TOKEN)
    named = folder.special_tokens
    fake, whole = (named.get(name) or default for name, default in MARKUP.items())
    return ImagePrompt(
        placeholder=image_token_text(folder, token),
        token=token,
        before=f"{fake}{whole}",
        after=fake,
        before_tile=f"{fake}<row_{{row}}_col_{{column}}>",
        after_row="\n",
        after_tiles="\n",
    )
