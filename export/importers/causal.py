"""Shared by the importers of decoders from ``transformers`` folders."""

from collections.abc import Collection, Iterable

from export.checkpoint import Checkpoint, check_weights
from export.importers.renaming import Rename, rename
from export.importers.samples import ENGLISH_PROMPTS
from export.importers.support import bundle_name, suppressed_tokens
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import lookup
from model.bundle import SpecialTokens, Task
from model.config import ModelConfig

OUTPUT_MATRIX = "lm_head.weight"


def architecture_of(config: Fields, supported: str) -> str:
    """The architecture in ``config``, which must be ``supported`` or absent.

    Raises:
        UnsupportedError: another architecture.
    """
    name = next(iter(config.texts("architectures")), supported)
    lookup({supported: None}, name, f"{config.origin}: architectures")
    return name


def causal_checkpoint(
    folder: HuggingFaceFolder,
    model: ModelConfig,
    architecture: str,
    table: Iterable[Rename],
    *,
    ignored: Collection[str] = (),
    output: str = OUTPUT_MATRIX,
) -> Checkpoint:
    """The language model in ``folder``; ``table`` has all of its weights.

    Args:
        ignored: as for :func:`export.importers.renaming.rename`.
        output: the output matrix. If it is tied, a saved copy must equal the token table.

    Raises:
        SourceError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    copies = {output: "embedding.tokens.weight"} if model.head.tied else {}
    weights = rename(table, folder.weights, ignored=ignored, copies=copies)
    check_weights(model, weights)
    eos = folder.generation_config.integers("eos_token_id") or config.integers("eos_token_id")
    pad = config.integer("pad_token_id", next(iter(eos), 0))
    return Checkpoint(
        config=model,
        weights=weights,
        tokenizer_json=folder.tokenizer_json,
        architecture=architecture,
        tasks=(Task.GENERATE,),
        special_tokens=_special_tokens(folder, eos, pad),
        license=folder.license,
        name=bundle_name(folder.path),
        chat_template=folder.chat_template,
        sample_inputs=ENGLISH_PROMPTS,
    )


def _special_tokens(folder: HuggingFaceFolder, eos: tuple[int, ...], pad: int) -> SpecialTokens:
    """Chat templates have the tokenizer's ``bos_token`` and ``eos_token``, which come first here.

    The ids of the configurations may be others: that of DeepSeek-R1-Distill-Qwen has the end token
    as ``bos_token_id``.
    """
    named, tokenizer = folder.special_tokens, folder.tokenizer

    def id_of(name: str) -> int | None:
        token = named.get(name)
        found: int | None = None if token is None else tokenizer.token_to_id(token)
        return found

    bos, first = id_of("bos_token"), id_of("eos_token")
    if "bos_token" not in named:
        bos = folder.config.optional_integer("bos_token_id")
    if first is not None:
        eos = tuple(dict.fromkeys((first, *eos)))
    return SpecialTokens(eos=eos, pad=pad, bos=bos, suppressed=suppressed_tokens(folder))
