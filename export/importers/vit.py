"""ViT (Dosovitskiy et al. 2021) and DeiT (Touvron et al. 2021), as ``transformers`` saves them."""

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from export.checkpoint import Checkpoint
from export.importers import vit_tables
from export.importers.activations import activation
from export.importers.bert_tables import LayerNames, layer_norm, num_layers, two_maps
from export.importers.encoders import Body
from export.importers.heads import Head, HeadReader, classifier, sequence_classifier
from export.importers.renaming import Rename, affine, per_layer
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.readers.image_processor import ImageProcessor, read_image_processor
from model.config import EmbeddingConfig, PoolingKind, StackConfig

CLASS_TOKEN, DISTILLATION_TOKEN = "embeddings.cls_token", "embeddings.distillation_token"
NAMES = LayerNames(
    query="encoder.layer.{n}.attention.attention.query",
    key="encoder.layer.{n}.attention.attention.key",
    value="encoder.layer.{n}.attention.attention.value",
    attention_norm="encoder.layer.{n}.layernorm_before",
    feed_forward_norm="encoder.layer.{n}.layernorm_after",
)
UNUSED = ("pooler.dense.weight", "pooler.dense.bias", "embeddings.mask_token")


def import_vit(folder: HuggingFaceFolder) -> Checkpoint:
    """The model in ``folder``, ready for a bundle. Embedding models omit the pooler.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    return _import(folder, "ViT", (CLASS_TOKEN,))


def import_deit(folder: HuggingFaceFolder) -> Checkpoint:
    """As :func:`import_vit`; with two heads, the logits are their mean."""
    heads: dict[str, HeadReader] = {"DeiTForImageClassificationWithTeacher": _mean_of_heads}
    return _import(folder, "DeiT", (CLASS_TOKEN, DISTILLATION_TOKEN), heads)


def _import(
    folder: HuggingFaceFolder,
    family: str,
    class_tokens: tuple[str, ...],
    more_heads: Mapping[str, HeadReader] = MappingProxyType({}),
) -> Checkpoint:
    processor = read_image_processor(folder, folder.config.positive("num_channels", 3))
    body = vit_body(folder.config, processor, family, class_tokens)
    heads = {
        f"{family}Model": vit_tables.image_embedder,
        f"{family}ForImageClassification": sequence_classifier,
        **more_heads,
    }
    return vit_tables.assemble_images(folder, body, processor, heads, f"{family}Model")


def vit_body(
    config: Fields, processor: ImageProcessor, family: str, class_tokens: tuple[str, ...]
) -> Body:
    """The encoder of ``config``; ``class_tokens`` are the names of their weights."""
    patches = vit_tables.read_patches(config, processor, num_class_tokens=len(class_tokens))
    feed_forward = two_maps(config, activation(config, "hidden_act", "gelu"))
    layers = (vit_tables.pre_norm_layer(config, feed_forward),) * num_layers(config)
    return Body(
        base=family.lower(),
        hidden_size=config.positive("hidden_size"),
        position=patches.position,
        embedding=EmbeddingConfig(),
        patches=patches,
        encoder=StackConfig(layers=layers, final_norm=layer_norm(config)),
        table=(
            *vit_tables.patch_map("embeddings.patch_embeddings.projection"),
            vit_tables.class_tokens(*class_tokens),
            vit_tables.position_table("embeddings.position_embeddings", patches),
            *per_layer(vit_tables.with_biases(config, NAMES.table()), len(layers)),
            *affine("encoder.final_norm", "layernorm"),
        ),
        ignored=UNUSED,
    )


def _mean_of_heads(folder: HuggingFaceFolder) -> Head:
    """One map of both class tokens: half of each head's."""
    heads = ("cls_classifier", "distillation_classifier")

    def half(*parts: Tensor) -> Tensor:
        return torch.cat(parts, -1).T / 2

    def mean(*biases: Tensor) -> Tensor:
        return torch.stack(biases).mean(0)

    table = (
        Rename("head.output.weight", tuple(f"{name}.weight" for name in heads), half),
        Rename("head.output.bias", tuple(f"{name}.bias" for name in heads), mean),
    )
    return classifier(folder, PoolingKind.CLASS_TOKENS, table)
