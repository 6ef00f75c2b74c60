"""Classes of BART that read a text with both stacks, and return labels or the part that answers.

Those of mBART and PLBART are the same, but texts end with their language.
"""

from collections.abc import Mapping

from export.checkpoint import Checkpoint
from export.errors import UnsupportedError
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


def classifier(folder: HuggingFaceFolder, pooling: PoolingKind = PoolingKind.LAST) -> Head:
    """A dense layer on the vector of the text's end, then the labels."""
    size = folder.config.positive("d_model", 1024)
    dense = NamedDense(
        linear="classification_head.dense",
        config=DenseConfig(size=size, activation=Activation.TANH),
    )
    return sequence_classifier(
        folder, dense, output="classification_head.out_proj", pooling=pooling
    )


def multilingual_classifier(folder: HuggingFaceFolder) -> Head:
    """As :func:`classifier`. The tokenizer may write the text's language after its end.

    Raises:
        UnsupportedError: it writes no end.
    """
    end, *_ = folder.config.integers("eos_token_id") or (2,)
    match folder.tokenizer.encode("a").ids[-2:]:
        case [*_, last] if last == end:
            return classifier(folder)
        case [last, _] if last == end:
            return classifier(folder, PoolingKind.SECOND_LAST)
    raise UnsupportedError(
        f"{folder.path}: the tokenizer does not end texts with {end}, the eos_token_id, whose "
        "vector is classified; supported: it does, or with the language after it"
    )


def heads(family: str, read_classifier: HeadReader) -> dict[str, HeadReader]:
    """The heads of a family, by class."""
    return {
        f"{family}ForSequenceClassification": read_classifier,
        f"{family}ForQuestionAnswering": question_answerer,
    }


def import_rereader(
    folder: HuggingFaceFolder,
    variant: BartVariant,
    heads: Mapping[str, HeadReader],
    rereading: RereadingConfig,
) -> Checkpoint:
    """The model in ``folder``, of a class in ``heads``, as an encoder.

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
        rereading=rereading,
        table=tuple(entry.renamed(_own_name) for entry in table),
        ignored=tuple(map(_own_name, VERSIONS)),
        ignored_heads=(OUTPUT_MATRIX, LOGITS_BIAS),
        copies={_own_name(name): _TABLE for name in copies},
    )
    return assemble(folder, body, heads, variant.architecture)


def _own_name(name: str) -> str:
    return name.removeprefix(f"{_BASE}.")
