"""Decoders that embed, classify, tag or rerank: their stack becomes an encoder.

It stays causal, unless the configuration says otherwise, and has no cache. A family's importer
describes the language model; the class or the files of sentence-transformers determine the head.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from msgspec import structs

from export.checkpoint import Checkpoint
from export.errors import UnsupportedError
from export.importers.encoders import Body, join
from export.importers.gated_encoder import encoder_table
from export.importers.heads import Head, question_answerer, sequence_classifier, token_classifier
from export.importers.renaming import Rename
from export.importers.rerankers import is_reranker, pair_template, reranker
from export.importers.sentence_transformers import embedder, is_embedder
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from model.config import AttentionConfig, ModelConfig, PoolingKind, StackConfig

LANGUAGE_MODELS = ("ForCausalLM", "LMHeadModel")  # suffixes of their classes' names
TOKENS = "embedding.tokens.weight"
# The base model's names in classes, if it is not the first part of the weights' names.
BASES = ("", "model.", "transformer.")
# Names of families by language model, if they are not the first part of its name.
FAMILIES = {"Gemma3ForCausalLM": "Gemma3Text"}


@dataclass(frozen=True)
class DecoderBody:
    """A language model, as its family's importer describes it.

    Attributes:
        table: all of its weights.
        ignored: weights that the checkpoint may have but the encoder does not need.
        is_causal: False if the family's own configuration says that tokens see later tokens.
    """

    model: ModelConfig
    table: list[Rename]
    ignored: tuple[str, ...]
    is_causal: bool = True


def pooled_classes(language_model: str) -> tuple[str, ...]:
    """The classes of transformers with the stack of ``language_model`` and another head."""
    for end in LANGUAGE_MODELS:
        if language_model.endswith(end):
            family = FAMILIES.get(language_model, language_model.removesuffix(end))
            return tuple(family + ending for ending in HEADS)
    return ()


def causal_encoder(
    folder: HuggingFaceFolder, body: DecoderBody, architecture: str
) -> Checkpoint | None:
    """The encoder in ``folder``; None if it is a language model.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    is_language_model = architecture.endswith(LANGUAGE_MODELS)
    is_causal = body.is_causal and folder.config.flag("is_causal", True)
    if is_embedder(folder):
        head = embedder(folder, body.model.hidden_size)
    elif is_language_model and is_reranker(folder):
        head = reranker(folder, body.model, body.table)
    elif not is_language_model:
        read = next(read for end, read in HEADS.items() if architecture.endswith(end))
        head = read(folder, body.model.hidden_size)
    elif is_causal:
        return None
    else:
        raise UnsupportedError(
            f"{folder.config.origin}: tokens see those after them, so {architecture} generates no "
            "text; supported: with the modules of sentence-transformers in modules.json"
        )
    if body.model.head.dense:
        raise UnsupportedError(
            f"{folder.config.origin}: {architecture} with a projection of the last hidden vectors "
            "is not supported; supported: without one"
        )
    _check_own_code(folder)
    stack = _encoder(folder, body, is_causal=is_causal)
    return join(folder, stack, architecture, head)


def _check_own_code(folder: HuggingFaceFolder) -> None:
    """Rejects a configuration that names Python code, which may compute something else."""
    code = folder.config.fields("auto_map")
    if code and "is_causal" not in folder.config:
        raise UnsupportedError(
            f"{folder.config.origin}: the model has code of its own, {', '.join(map(str, code))}; "
            "supported: the classes of transformers. If the code only lets tokens see those after "
            "them, or changes nothing, is_causal false or true says so"
        )
    own = folder.read_json("tokenizer_config.json")
    tokenizer = Fields(own if isinstance(own, dict) else {}, "tokenizer_config.json")
    if "auto_map" not in tokenizer or not tokenizer.flag("add_eos_token", False):
        return
    end = folder.tokenizer.token_to_id(folder.special_tokens.get("eos_token") or "")
    if folder.tokenizer.encode("a").ids[-1:] != [end]:
        raise UnsupportedError(
            f"{tokenizer.origin}: the tokenizer has code of its own (auto_map), which ends texts "
            "with the eos_token; supported: a tokenizer.json whose post_processor adds it"
        )


def _encoder(folder: HuggingFaceFolder, body: DecoderBody, *, is_causal: bool) -> Body:
    """The stack without its head, with the names of the weights in ``folder``."""
    decoder = body.model.decoder
    if decoder is None:
        raise ValueError("a language model has a decoder")
    attend = _causal if is_causal else _bidirectional(folder, body)
    layers = tuple(
        structs.replace(layer, attention=layer.attention and attend(layer.attention))
        for layer in decoder.layers
    )
    if not is_causal and any(layer.convolution is not None for layer in layers):
        raise UnsupportedError(
            f"{folder.config.origin}: convolutions with tokens that see those after them are not "
            "supported"
        )
    entries = encoder_table(body.table)
    name_of = _names(entries, folder.weights)
    return Body(
        base="",
        hidden_size=body.model.hidden_size,
        position=body.model.position,
        embedding=body.model.embedding,
        encoder=StackConfig(layers=layers, final_norm=decoder.final_norm),
        table=tuple(
            replace(entry, sources=tuple(map(name_of, entry.sources))) for entry in entries
        ),
        ignored=tuple(map(name_of, body.ignored)),
    )


def _names(entries: Iterable[Rename], weights: Mapping[str, object]) -> Callable[[str], str]:
    """Maps the language model's weight names to those in the checkpoint.

    They differ in the first part, which names the base model.
    """
    source = next(entry.sources[0] for entry in entries if entry.target == TOKENS)
    base, _, name = source.partition(".")
    other = next((other for other in BASES if other + name in weights), None)
    if source in weights or other is None:
        return lambda given: given
    return lambda given: (
        other + given.removeprefix(f"{base}.") if given.startswith(f"{base}.") else given
    )


def _causal(attention: AttentionConfig) -> AttentionConfig:
    return structs.replace(attention, is_causal=True)


def _bidirectional(
    folder: HuggingFaceFolder, body: DecoderBody
) -> Callable[[AttentionConfig], AttentionConfig]:
    """Adapts windows: with ``is_causal`` false, a window of transformers is one token wider."""
    wider = int(body.is_causal)

    def attend(attention: AttentionConfig) -> AttentionConfig:
        if attention.bias is not None:
            raise UnsupportedError(
                f"{folder.config.origin}: ALiBi with tokens that see those after them is not "
                "supported"
            )
        if attention.window is None:
            return attention
        return structs.replace(attention, window=attention.window + wider)

    return attend


def _sequence_classifier(folder: HuggingFaceFolder, _hidden_size: int) -> Head:
    """Logits at the last token that is not padding."""
    ids = folder.tokenizer.encode("a").ids
    if len(ids) > 1 and ids[-1] == folder.config.get("pad_token_id"):
        raise UnsupportedError(
            f"{folder.path}: the tokenizer ends texts with the token {ids[-1]}, which is padding "
            "for the classifier; supported: a tokenizer.json whose post_processor does not add it"
        )
    head = sequence_classifier(folder, output="score", pooling=PoolingKind.LAST, bias=False)
    return replace(head, pair_template=pair_template(folder))


def _token_classifier(folder: HuggingFaceFolder, _hidden_size: int) -> Head:
    output = "score" if "score.weight" in folder.weights else "classifier"
    return token_classifier(folder, output=output, bias=f"{output}.bias" in folder.weights)


def _question_answerer(folder: HuggingFaceFolder, _hidden_size: int) -> Head:
    return question_answerer(folder)


# By suffix of the class's name.
HEADS: dict[str, Callable[[HuggingFaceFolder, int], Head]] = {
    "Model": embedder,
    "ForSequenceClassification": _sequence_classifier,
    "ForTokenClassification": _token_classifier,
    "ForQuestionAnswering": _question_answerer,
}
