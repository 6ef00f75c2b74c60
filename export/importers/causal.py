"""Shared by the importers of decoders from ``transformers`` folders."""

from collections.abc import Collection, Iterable

from export.chat import chat_template_of
from export.checkpoint import Checkpoint, check_weights
from export.importers.causal_encoder import DecoderBody, causal_encoder, pooled_classes
from export.importers.renaming import Rename, rename
from export.importers.samples import ENGLISH_PROMPTS
from export.importers.support import bundle_name, suppressed_tokens
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import lookup
from model.bundle import SpecialTokens, Task
from model.config import ModelConfig

OUTPUT_MATRIX = "lm_head.weight"
FREQUENCIES = "rotary_emb.inv_freq"  # buffers of old transformers versions
NO_TOKEN = -1  # the padding token of the first Llama's folders


def architecture_of(config: Fields, supported: str) -> str:
    """The architecture in ``config``; ``supported`` if there is none.

    If ``supported`` is a causal language model, its family's encoders and classifiers are too.

    Raises:
        UnsupportedError: another architecture.
    """
    name = next(iter(config.texts("architectures")), supported)
    known = dict.fromkeys([supported, *pooled_classes(supported)])
    lookup(known, name, f"{config.origin}: architectures")
    return name


def causal_checkpoint(
    folder: HuggingFaceFolder,
    model: ModelConfig,
    architecture: str,
    table: Iterable[Rename],
    *,
    ignored: Collection[str] = (),
    output: str = OUTPUT_MATRIX,
    is_causal: bool = True,
) -> Checkpoint:
    """The language model in ``folder``, or another model with its stack.

    Args:
        model: the language model.
        architecture: from :func:`architecture_of`.
        table: all weights of ``model``.
        ignored: as in :func:`export.importers.renaming.rename`.
        output: the output matrix. If it is tied, a saved copy must equal the token table.
        is_causal: False if the family's own configuration says that tokens see later tokens.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    table = list(table)
    body = DecoderBody(model, table, (*ignored, output), is_causal=is_causal)
    encoder = causal_encoder(folder, body, architecture)
    if encoder is not None:
        return encoder
    copies = {output: "embedding.tokens.weight"} if model.head.tied else {}
    frequencies = [name for name in folder.weights if name.endswith(FREQUENCIES)]
    ignored = [*ignored, *frequencies]
    weights = rename(table, folder.weights, ignored=ignored, copies=copies)
    check_weights(model, weights)
    return Checkpoint(
        config=model,
        weights=weights,
        tokenizer_json=folder.tokenizer_json,
        architecture=architecture,
        tasks=(Task.GENERATE,),
        special_tokens=_special_tokens(folder, model.vocabulary_size),
        license=folder.license,
        name=bundle_name(folder.path),
        chat_template=chat_template_of(folder),
        sample_inputs=ENGLISH_PROMPTS,
    )


def _special_tokens(folder: HuggingFaceFolder, vocabulary_size: int) -> SpecialTokens:
    """The special tokens; the tokenizer's ``bos_token`` and ``eos_token`` take precedence.

    Chat templates use them, and the ids in the configurations may differ: DeepSeek-R1-Distill-Qwen
    has the end token as ``bos_token_id``. Ids beyond the vocabulary are defaults of transformers'
    classes, such as GPT-2's 50256; models with fewer tokens never generate them.
    """
    config, named, tokenizer = folder.config, folder.special_tokens, folder.tokenizer

    def id_of(name: str) -> int | None:
        token = named.get(name)
        found: int | None = None if token is None else tokenizer.token_to_id(token)
        return found

    def ids_in(fields: Fields, name: str) -> tuple[int, ...]:
        return tuple(id_ for id_ in fields.integers(name) if id_ < vocabulary_size)

    eos = ids_in(folder.generation_config, "eos_token_id") or ids_in(config, "eos_token_id")
    pads = () if config.get("pad_token_id") == NO_TOKEN else ids_in(config, "pad_token_id")
    pad = next(iter((*pads, *eos)), 0)
    bos, first = id_of("bos_token"), id_of("eos_token")
    if "bos_token" not in named:
        bos = next(iter(ids_in(config, "bos_token_id")), None)
    if first is not None:
        eos = tuple(dict.fromkeys((first, *eos)))
    return SpecialTokens(eos=eos, pad=pad, bos=bos, suppressed=suppressed_tokens(folder))
