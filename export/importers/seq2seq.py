"""Shared by the importers of encoder-decoders from ``transformers`` folders."""

import re
from collections.abc import Collection, Iterable, Mapping

from torch import Tensor

from export.checkpoint import Checkpoint, check_weights
from export.importers.renaming import NONE, Rename, rename
from export.importers.samples import ENGLISH_TEXTS, source_sentences
from export.importers.support import bundle_name, suppressed_tokens
from export.readers.hugging_face import HuggingFaceFolder
from model.bundle import SpecialTokens, Task
from model.config import ModelConfig


def token_table(weights: Mapping[str, Tensor], names: tuple[str, ...]) -> str:
    """The first of ``names``, all for the same token table, that the checkpoint has.

    If it has none of them, the first one.
    """
    return next((name for name in names if name in weights), names[0])


def seq2seq_checkpoint(
    folder: HuggingFaceFolder,
    model: ModelConfig,
    architecture: str,
    table: Iterable[Rename],
    tasks: tuple[Task, ...],
    *,
    ignored: Collection[str] = (),
    copies: Mapping[str, str] = NONE,
    computed: Mapping[str, Tensor] = NONE,
    language: str | None = None,
) -> Checkpoint:
    """The encoder-decoder in ``folder``; ``table`` has all of its weights.

    Args:
        ignored, copies, computed: as for :func:`export.importers.renaming.rename`.
        language: a regular expression for a multilingual model's language tokens; its first
            group is the language.

    Raises:
        SourceError, WeightsError: see :mod:`export.errors`.
    """
    weights = rename(table, folder.weights, ignored=ignored, copies=copies, computed=computed)
    check_weights(model, weights)
    return Checkpoint(
        config=model,
        weights=weights,
        tokenizer_json=folder.tokenizer_json,
        architecture=architecture,
        tasks=tasks,
        special_tokens=_special_tokens(folder),
        languages={} if language is None else _languages(folder, language),
        license=folder.license,
        name=bundle_name(folder.path),
        sample_inputs=source_sentences(None) if tasks == (Task.TRANSLATE,) else ENGLISH_TEXTS,
    )


def _special_tokens(folder: HuggingFaceFolder) -> SpecialTokens:
    """From the generation configuration; older folders have it in the model's configuration."""
    config, generation = folder.config, folder.generation_config

    def one(name: str) -> int | None:
        return next(iter(generation.integers(name) or config.integers(name)), None)

    eos = generation.integers("eos_token_id") or config.integers("eos_token_id")
    pad, bos, start = (one(f"{name}_token_id") for name in ("pad", "bos", "decoder_start"))
    pad = 0 if pad is None else pad
    # The decoder start token; T5 uses its padding.
    start = next(token for token in (start, bos, pad) if token is not None)
    return SpecialTokens(
        eos=eos,
        pad=pad,
        bos=bos,
        decoder_start=start,
        forced_first=one("forced_bos_token_id"),
        suppressed=suppressed_tokens(folder),
    )


def _languages(folder: HuggingFaceFolder, pattern: str) -> dict[str, int]:
    """The added tokens for languages, in the order of their ids."""
    added = folder.tokenizer.get_added_tokens_decoder()
    matches = {index: re.fullmatch(pattern, token.content) for index, token in added.items()}
    return {match[1]: index for index, match in sorted(matches.items()) if match}
