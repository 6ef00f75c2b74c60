"""Shared by all importers: limits, head sizes, names, suppressed tokens."""

import re
from pathlib import Path

from export.errors import SourceError, UnsupportedError
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from model.config import ExpertsConfig

# Files with more layers are damaged or hostile; rejecting them early saves memory.
MAX_LAYERS = 1024
MAX_EXPERTS = 1024  # of a layer
MAX_LABELS = 1 << 20  # that have no names
MAX_TABLE_POSITIONS = 1 << 16  # of a table that the export computes: sinusoids, ALiBi's biases
MAX_TABLE_SIZE = 1 << 28  # elements


def check_table_size(num_positions: int, size: int) -> None:
    """Raises ``SourceError`` if a table of sinusoids would need too much memory."""
    if num_positions * size > MAX_TABLE_SIZE:
        raise SourceError(
            f"a table of {num_positions} × {size} sinusoids has more than {MAX_TABLE_SIZE} elements"
        )


def divide_heads(origin: str, hidden_size: int, num_heads: int) -> int:
    """The size of a head.

    Raises:
        SourceError: ``num_heads`` does not divide ``hidden_size``.
    """
    if hidden_size % num_heads:
        raise SourceError(f"{origin}: {num_heads} heads do not divide the size {hidden_size}")
    return hidden_size // num_heads


def no_experts(_config: Fields, _side: str, _index: int) -> ExpertsConfig | None:
    """No layer is a mixture of experts."""
    return None


def clip_of(config: Fields) -> float | None:
    """The field ``clip_qkv``: the largest magnitude of queries, keys and values.

    Raises:
        SourceError: it is not positive.
    """
    clip = config.optional_number("clip_qkv")
    if clip is not None and clip <= 0:
        raise SourceError(f"{config.origin}: clip_qkv is {clip}")
    return clip


def bundle_name(path: Path) -> str:
    """A bundle's name (``model.bundle.NAME_PATTERN``) from the name of a file or folder."""
    name = path.resolve().stem if path.is_file() else path.resolve().name
    return re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-._") or "model"


def generation_fields(folder: HuggingFaceFolder) -> Fields:
    """The fields of generation_config.json or, only without it, of config.json."""
    return folder.generation_config or folder.config


def suppressed_tokens(folder: HuggingFaceFolder) -> tuple[int, ...]:
    """Tokens that are never generated. An end token among the "bad words" is ignored.

    Raises:
        UnsupportedError: there are bad words of several tokens, or a field that changes outputs and
            that requests cannot set.
    """
    fields = generation_fields(folder)
    check_supported(
        fields,
        begin_suppress_tokens=(None, []),
        encoder_repetition_penalty=(None, 1),
        exponential_decay_length_penalty=(None,),
        forced_decoder_ids=(None, []),
        guidance_scale=(None, 1),
        sequence_bias=(None, [], {}),
        watermarking_config=(None,),
    )
    words = fields.get("bad_words_ids")
    words = [word for word in words if isinstance(word, list)] if isinstance(words, list) else []
    longer = [word for word in words if len(word) > 1]
    if longer:
        raise UnsupportedError(
            f"{fields.origin}: bad_words_ids {longer} of several tokens are not supported; "
            "supported: one token each. Requests have the option bad_words"
        )
    eos = fields.integers("eos_token_id")
    single = [word[0] for word in words if word and type(word[0]) is int and word[0] not in eos]
    return tuple(sorted({*single, *fields.integers("suppress_tokens")}))
