"""BART's classes that read a text with both stacks, and return labels or the part that answers.

Marian and the others of :mod:`export.importers.bart_tables` have none, or pool another token.
"""

from export.checkpoint import Checkpoint
from export.importers.bart_tables import (
    LOGITS_BIAS,
    TOKENS,
    VERSIONS,
    BartVariant,
    model_config,
    stacks_table,
)
from export.importers.causal import OUTPUT_MATRIX
from export.importers.encoders import Body, assemble
from export.importers.heads import (
    Head,
    HeadReader,
    NamedDense,
    question_answerer,
    sequence_classifier,
)
from export.importers.renaming import Rename
from export.importers.seq2seq import token_table
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from model.config import Activation, DenseConfig, PoolingKind
from model.rereading_config import RereadingConfig

_BASE = "model"
_TABLE = "embedding.tokens.weight"


def _classifier(folder: HuggingFaceFolder) -> Head:
    """A dense layer on the vector of the text's last token, which is its end, then the labels."""
    size = folder.config.positive("d_model", 1024)
    dense = NamedDense(
        linear="classification_head.dense",
        config=DenseConfig(size=size, activation=Activation.TANH),
    )
    return sequence_classifier(
        folder, dense, output="classification_head.out_proj", pooling=PoolingKind.LAST
    )


HEADS: dict[str, HeadReader] = {
    "BartForSequenceClassification": _classifier,
    "BartForQuestionAnswering": question_answerer,
}


def import_rereader(folder: HuggingFaceFolder, variant: BartVariant) -> Checkpoint:
    """The model in ``folder``, of a class in ``HEADS``, as an encoder.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    check_supported(config, tie_word_embeddings=(True,), is_causal=(True,))
    model = model_config(config, variant)
    if model.encoder is None:
        raise ValueError("this variant has no encoder")
    tokens = token_table(folder.weights, TOKENS)
    table = [Rename(_TABLE, (tokens,)), *stacks_table(model, variant)]
    copies = {*TOKENS} - {tokens, OUTPUT_MATRIX}
    body = Body(
        base=_BASE,
        hidden_size=model.hidden_size,
        position=model.position,
        embedding=model.embedding,
        encoder=model.encoder,
        decoder=model.decoder,
        rereading=RereadingConfig(first=config.integer("decoder_start_token_id", 2)),
        table=tuple(_without_base(entry) for entry in table),
        ignored=tuple(map(_own_name, VERSIONS)),
        ignored_heads=(OUTPUT_MATRIX, LOGITS_BIAS),
        copies={_own_name(name): _TABLE for name in copies},
    )
    return assemble(folder, body, HEADS, variant.architecture)


def _own_name(name: str) -> str:
    return name.removeprefix(f"{_BASE}.")


def _without_base(entry: Rename) -> Rename:
    return Rename(entry.target, tuple(map(_own_name, entry.sources)), entry.transform)
