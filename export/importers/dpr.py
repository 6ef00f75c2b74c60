"""DPR's question and passage encoders (Karpukhin et al. 2020): BERT's first token.

Each is a bundle of its own; a score is the dot product of a vector of each.
"""

import dataclasses
from functools import partial

import msgspec

from export.checkpoint import Checkpoint
from export.importers.bert_tables import BertVariant, bert_body
from export.importers.encoders import assemble
from export.importers.heads import Head, HeadReader, NamedDense
from export.importers.sentence_transformers import embedder
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import lookup
from model.bundle import Task
from model.config import DenseConfig, PoolingKind

DEFAULT_CLASS = "DPRContextEncoder"
# The prefix of all weights, by class.
BASES = {DEFAULT_CLASS: "ctx_encoder", "DPRQuestionEncoder": "question_encoder"}


def import_dpr(folder: HuggingFaceFolder) -> Checkpoint:
    """The encoder in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    architecture = next(iter(config.texts("architectures")), DEFAULT_CLASS)
    base = lookup(BASES, architecture, f"{config.origin}: architectures")
    body = bert_body(config, BertVariant(base=f"{base}.bert_model"))
    return assemble(folder, body, HEADS, DEFAULT_CLASS)


def _embedder(base: str, folder: HuggingFaceFolder) -> Head:
    """The first token's vector, after a linear map if ``projection_dim`` is not 0."""
    head, projected = embedder(folder), folder.config.integer("projection_dim", 0)
    dense = [NamedDense(linear=f"{base}.encode_proj", config=DenseConfig(size=projected))]
    dense = dense if projected else []
    size = projected or folder.config.positive("hidden_size")
    replace = msgspec.structs.replace
    return dataclasses.replace(
        head,
        config=replace(
            head.config, pooling=PoolingKind.CLS, dense=tuple(map_.config for map_ in dense)
        ),
        tasks=(Task.EMBED,),
        table=tuple(entry for map_ in dense for entry in map_.table(0)),
        embedding=head.embedding and replace(head.embedding, pooling=PoolingKind.CLS, size=size),
    )


HEADS: dict[str, HeadReader] = {name: partial(_embedder, base) for name, base in BASES.items()}
