"""Adds a vision tower and its connector to a decoder that an importer has read."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from msgspec import structs

from export.checkpoint import Checkpoint, check_weights
from export.errors import SourceError, UnsupportedError
from export.importers.encoders import Body
from export.importers.renaming import Rename, rename
from export.readers.hugging_face import HuggingFaceFolder
from export.readers.image_processor import ImageProcessor
from export.readers.renamed_weights import RenamedWeights
from model.config import DenseConfig, NormConfig, VisionConfig
from model.image_config import MAX_IMAGE_TOKENS, ImagePrompt, image_spec
from model.vision_config import PatchMerge

VISION = "vision."  # before the names of the tower's and the connector's weights


def image_token_text(folder: HuggingFaceFolder, token: int) -> str:
    """The text of a special token of images. Raises ``SourceError`` if there is none."""
    text: str | None = folder.tokenizer.id_to_token(token)
    if text is None:
        raise SourceError(f"{folder.path}: the tokenizer has no image token {token}")
    return text


@dataclass(frozen=True, kw_only=True)
class Connector:
    """From the tower's vectors to the decoder's: see :class:`model.config.VisionConfig`.

    ``table`` has the names of its weights in the checkpoint without the prefix of the folder.
    """

    dense: tuple[DenseConfig, ...]
    table: tuple[Rename, ...]
    keeps_class_tokens: bool = False
    merge: PatchMerge | None = None
    merge_size: int = 1
    merged_norm: NormConfig | None = None


def part_of(
    folder: HuggingFaceFolder, prefixes: Collection[str], others: str = ""
) -> RenamedWeights:
    """The weights whose names begin with one of ``prefixes``, without it.

    Args:
        others: a second prefix that some versions of ``transformers`` write after the first.
    """
    return RenamedWeights(folder.weights, dict(_names(folder.weights, prefixes, others)))


def _names(
    names: Iterable[str], prefixes: Collection[str], others: str
) -> Iterator[tuple[str, str]]:
    for name in names:
        for prefix in prefixes:
            if name.startswith(prefix):
                yield name.removeprefix(prefix).removeprefix(others), name
                break


def with_vision(
    decoder: Checkpoint,
    tower: Body,
    weights: RenamedWeights,
    connector: Connector,
    connector_weights: RenamedWeights,
    processor: ImageProcessor,
    prompt: ImagePrompt,
    ignored: Collection[str] = (),
) -> Checkpoint:
    """``decoder``, which then reads images in its prompts.

    Args:
        decoder: the language model.
        tower: the vision tower, from its family's importer.
        weights: the tower's, with the names of ``tower.table``.
        connector: the connector.
        connector_weights: with the names of ``connector.table``.
        processor: of pictures.
        prompt: how a prompt has images.
        ignored: names in ``weights`` that the tower does not need.

    Raises:
        SourceError: the decoder does not have the token of ``prompt``.
        WeightsError: see :mod:`export.errors`.
    """
    if tower.patches is None:
        raise ValueError("a vision tower has patches")
    vision = VisionConfig(
        hidden_size=tower.hidden_size,
        norm=tower.embedding.norm,
        encoder=tower.encoder,
        patches=tower.patches,
        keeps_class_tokens=connector.keeps_class_tokens,
        merge=connector.merge,
        merge_size=connector.merge_size,
        merged_norm=connector.merged_norm,
        dense=connector.dense,
    )
    size = decoder.config.vocabulary_size
    if prompt.token >= size:
        raise SourceError(f"the image token {prompt.token} is beyond the vocabulary of {size}")
    config = structs.replace(decoder.config, vision=vision)
    added = {
        **rename(tower.table, weights, ignored={*tower.ignored, *ignored}),
        **rename(connector.table, connector_weights),
    }
    named = {**decoder.weights, **{VISION + name: weight for name, weight in added.items()}}
    check_weights(config, named)
    image = image_spec(
        vision.patches,
        processor.resize,
        processor.resampling,
        keeps_aspect_ratio=processor.keeps_aspect_ratio,
    )
    image = structs.replace(
        image, num_tokens=vision.num_tokens, prompt=prompt, tiling=processor.tiling
    )
    if image.max_tokens > MAX_IMAGE_TOKENS:
        raise UnsupportedError(
            f"{image.max_tokens} vectors of an image; supported: up to {MAX_IMAGE_TOKENS}"
        )
    return replace(decoder, config=config, weights=named, image=image)
