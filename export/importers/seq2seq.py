"""Shared by the importers of encoder-decoders from ``transformers`` folders."""

import re
from collections.abc import Collection, Iterable, Mapping

from torch import Tensor

from export.checkpoint import Checkpoint, check_weights
from export.errors import UnsupportedError
from export.importers.renaming import NONE, Rename, rename
from export.importers.samples import ENGLISH_TEXTS, source_sentences
from export.importers.support import bundle_name, generation_fields, suppressed_tokens
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from model.bundle import SpecialTokens, Task
from model.config import ModelConfig


def token_table(weights: Mapping[str, Tensor], names: tuple[str, ...]) -> str:
    """The first of ``names`` that the checkpoint has; all are names of the same token table.

    If it has none of them, the first name.
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
        ignored, copies, computed: as in :func:`export.importers.renaming.rename`.
        language: a regular expression for a multilingual model's language tokens; its first
            group is the language.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
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
    """The special tokens of the generation configuration; in older folders, of the model's.

    A target starts with the decoder start token, else with bos, and in T5 with the padding token.
    """
    config, generation = folder.config, folder.generation_config
    sources = (generation, config)

    def first(*names: str) -> int | None:
        found = (_one(source, name) for source in sources for name in names)
        return next((token for token in found if token is not None), None)

    pad = first("pad_token_id") or 0
    start = first("decoder_start_token_id", "bos_token_id")
    return SpecialTokens(
        eos=generation.integers("eos_token_id") or config.integers("eos_token_id"),
        pad=pad,
        bos=first("bos_token_id"),
        decoder_start=pad if start is None else start,
        forced_first=_one(generation_fields(folder), "forced_bos_token_id"),
        suppressed=suppressed_tokens(folder),
    )


def _one(fields: Fields, name: str) -> int | None:
    """The only id of a field that may be a list with one id per text of a batch."""
    ids = fields.integers(name)
    if len(ids) > 1:
        raise UnsupportedError(
            f"{fields.origin}: {name} {list(ids)} is not supported; supported: one id"
        )
    return next(iter(ids), None)


def _languages(folder: HuggingFaceFolder, pattern: str) -> dict[str, int]:
    """The added language tokens, in the order of their ids."""
    added = folder.tokenizer.get_added_tokens_decoder()
    matches = {index: re.fullmatch(pattern, token.content) for index, token in added.items()}
    return {match[1]: index for index, match in sorted(matches.items()) if match}
