"""ESM-1b and ESM-2 (Rives et al. 2021; Lin et al. 2022), as ``transformers`` saves them.

Encoders of protein sequences: BERT's layers with pre-norm and rotary or learned positions. Masks
are dropped-out tokens, which scales the other embeddings.
"""

import dataclasses

import msgspec
import torch
from torch import Tensor

from export.checkpoint import Checkpoint
from export.errors import SourceError
from export.importers.bert_tables import (
    TOKENS,
    UNUSED,
    LayerNames,
    later_positions,
    layer_norm,
    learned_positions,
    multi_head,
    num_layers,
    two_maps,
)
from export.importers.encoders import Body, assemble
from export.importers.head_tables import FAIRSEQ_CLASSIFIER, always, four_classes, masked
from export.importers.renaming import affine, per_layer
from export.importers.samples import PROTEINS
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from model.config import Activation, EmbeddingConfig, LayerConfig, NormOrder, StackConfig
from model.mixers import required
from model.position_config import ListedScaling, PositionConfig, PositionKind, RotaryConfig
from model.rotary import rotary_frequencies

PAD = 1
NAMES = LayerNames(
    attention_norm="encoder.layer.{n}.attention.LayerNorm",
    feed_forward_norm="encoder.layer.{n}.LayerNorm",
)
# Names of rotary frequencies: per layer in older folders, later per model, which transformers 5
# saves as those of the layer "*".
FREQUENCIES = "rotary_embeddings.inv_freq"
LAYER_FREQUENCIES = f"encoder.layer.{{n}}.attention.self.{FREQUENCIES}"
CONTACTS = ("contact_head.regression.weight", "contact_head.regression.bias")


def import_esm(folder: HuggingFaceFolder) -> Checkpoint:
    """The model in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    check_supported(
        config,
        is_decoder=(False,),
        add_cross_attention=(False,),
        is_folding_model=(False,),
        position_embedding_type=("absolute", "rotary"),
    )
    is_rotary = config.text("position_embedding_type", "absolute") == "rotary"
    number, norm = num_layers(config), layer_norm(config)
    has_norm = config.flag("emb_layer_norm_before", False)
    first = config.integer("pad_token_id", PAD) + 1
    each = [LAYER_FREQUENCIES.replace("{n}", str(n)) for n in ("*", *range(number))]
    frequencies = [FREQUENCIES, *each]
    layer = _layer(config)
    if is_rotary:
        layer = _with_rotary(layer, config, _saved(folder, frequencies))
    body = Body(
        base="esm",
        hidden_size=config.positive("hidden_size"),
        position=PositionConfig(
            kind=PositionKind.NONE, max_positions=config.positive("max_position_embeddings", 1026)
        )
        if is_rotary
        else learned_positions(config, first=first),
        embedding=EmbeddingConfig(
            norm=norm if has_norm else None, dropped_token=_dropped_token(config)
        ),
        encoder=StackConfig(layers=(layer,) * number, final_norm=norm),
        table=(
            TOKENS,
            *(() if is_rotary else (later_positions(first),)),
            *(affine("embedding.norm", "embeddings.layer_norm") if has_norm else ()),
            *affine("encoder.final_norm", "encoder.emb_layer_norm_after"),
            *per_layer(NAMES.table(), number),
        ),
        ignored=(*UNUSED, *CONTACTS, *frequencies, "embeddings.position_embeddings.weight"),
        # transformers multiplies the embeddings by the attention mask.
        allows_unattended=False,
    )
    return with_proteins(folder, assemble(folder, body, HEADS, "EsmModel"))


def with_proteins(folder: HuggingFaceFolder, checkpoint: Checkpoint) -> Checkpoint:
    """``checkpoint`` with proteins as samples.

    Its unknown token is set, so that exports do not calibrate on English, which it cannot read.
    """
    name = folder.special_tokens.get("unk_token") or "<unk>"
    special = msgspec.structs.replace(
        checkpoint.special_tokens, unk=folder.tokenizer.token_to_id(name)
    )
    return dataclasses.replace(checkpoint, special_tokens=special, sample_inputs=PROTEINS)


def _layer(config: Fields) -> LayerConfig:
    return LayerConfig(
        attention=multi_head(config),
        feed_forward=two_maps(config, Activation.GELU),
        norm=layer_norm(config),
        norm_order=NormOrder.PRE,
    )


def _dropped_token(config: Fields) -> int | None:
    return config.integer("mask_token_id") if config.flag("token_dropout", False) else None


def _saved(folder: HuggingFaceFolder, names: list[str]) -> Tensor | None:
    """The first of the frequencies ``names`` that the folder has."""
    found = (f"{base}{name}" for name in names for base in ("", "esm."))
    name = next((name for name in found if name in folder.weights), None)
    return None if name is None else folder.weights[name].float()


def _with_rotary(layer: LayerConfig, config: Fields, saved: Tensor | None) -> LayerConfig:
    """``layer`` with rotary positions; its ``saved`` frequencies may be rounded.

    Raises:
        SourceError: they are not the frequencies of this model.
    """
    attention = required(layer.attention)
    rotary = RotaryConfig(base=config.number("rope_theta", 10_000.0))
    exact = rotary_frequencies(attention.head_size, rotary)
    if saved is not None and not torch.equal(saved, exact):
        if saved.shape != exact.shape or not torch.allclose(saved, exact, rtol=1e-2, atol=1e-6):
            raise SourceError(f"{config.origin}: inv_freq differs from the base {rotary.base}")
        factors = tuple((exact / saved).tolist())
        rotary = msgspec.structs.replace(rotary, scaling=ListedScaling(factors=factors))
    attention = msgspec.structs.replace(attention, rotary=rotary)
    return msgspec.structs.replace(layer, attention=attention)


HEADS = four_classes(
    "Esm",
    classifier=FAIRSEQ_CLASSIFIER,
    masked=masked(
        "lm_head.dense",
        "lm_head.layer_norm",
        "lm_head.decoder",
        "lm_head.bias",
        always(Activation.GELU),
        has_own_bias=False,
    ),
)
