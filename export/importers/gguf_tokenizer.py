"""Tokenizers in GGUF: byte-level BPE and SentencePiece's BPE."""

from export.errors import SourceError
from export.readers.fields import Fields
from export.supported import lookup
from export.tokenization.byte_level_bpe import ByteLevelBpe
from export.tokenization.scored_bpe import ScoredBpe

# Byte-level pre-tokenizers with which llama.cpp adds the first token unless the file forbids it.
_PREFIXED = ("lfm2", "llama-bpe")
# Tokens that end an output in llama.cpp, whatever the file says; without ``</s>`` and ``<PAD>``,
# which are HTML or ordinary tokens of some vocabularies.
_ENDS = (
    *("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<EOT>", "_<EOT>"),
    *("<|eom_id|>", "<|end_of_text|>", "<end_of_utterance>"),
    "<｜end▁of▁sentence｜>",  # as DeepSeek writes it
    *("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<|fim_repo|>", "<|repo_name|>", "<fim-repo>"),
    *("<REPO>", "<reponame>", "<|file_sep|>"),  # the text of another file begins
)
# Values of ``tokenizer.ggml.token_type`` in ggml.
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4


def gguf_tokenizer(metadata: Fields) -> str:
    """The tokenizer as *tokenizers* JSON.

    Raises:
        SourceError: damaged metadata.
        UnsupportedError: another kind of tokenizer.
    """
    tokens = metadata.texts("tokenizer.ggml.tokens")
    types = metadata.integers("tokenizer.ggml.token_type")
    if len(types) != len(tokens):
        raise SourceError(f"{metadata.origin}: {len(types)} token types for {len(tokens)} tokens")
    kinds = {"gpt2": _byte_level, "llama": _sentence_piece}
    kind = metadata.text("tokenizer.ggml.model")
    return lookup(kinds, kind, f"{metadata.origin}: tokenizer.ggml.model")(metadata, tokens, types)


def end_tokens(metadata: Fields) -> tuple[int, ...]:
    """The ids that end an output: those that the file names, then those found by their text."""
    named = (
        id_
        for kind in ("eos", "eot", "eom")
        for id_ in metadata.integers(f"tokenizer.ggml.{kind}_token_id")
    )
    places = {token: id_ for id_, token in enumerate(metadata.texts("tokenizer.ggml.tokens"))}
    found = (places[token] for token in _ENDS if token in places)
    return tuple(dict.fromkeys((*named, *found)))


def _byte_level(metadata: Fields, tokens: list[str], types: tuple[int, ...]) -> str:
    pre_tokenizer = metadata.text("tokenizer.ggml.pre", "default")
    return ByteLevelBpe(
        tokens=tokens,
        merges=metadata.texts("tokenizer.ggml.merges"),
        pre_tokenizer=pre_tokenizer,
        special=_of_type(_CONTROL, tokens, types),
        added=_of_type(_USER_DEFINED, tokens, types),
        prefix=_prefix(metadata, tokens, default=pre_tokenizer in _PREFIXED),
    ).to_json()


def _sentence_piece(metadata: Fields, tokens: list[str], types: tuple[int, ...]) -> str:
    scores = metadata.numbers("tokenizer.ggml.scores")
    if len(scores) != len(tokens):
        raise SourceError(f"{metadata.origin}: {len(scores)} scores for {len(tokens)} tokens")
    unknown = metadata.integer(
        "tokenizer.ggml.unknown_token_id", types.index(_UNKNOWN) if _UNKNOWN in types else 0
    )
    if unknown >= len(tokens):
        raise SourceError(f"{metadata.origin}: tokenizer.ggml.unknown_token_id is {unknown}")
    return ScoredBpe(
        tokens=tokens,
        scores=scores,
        unknown=tokens[unknown],
        special=_of_type(_CONTROL, tokens, types),
        added=_of_type(_USER_DEFINED, tokens, types),
        prefix=_prefix(metadata, tokens, default=True),
        adds_space=metadata.flag("tokenizer.ggml.add_space_prefix", True),
    ).to_json()


def _of_type(kind: int, tokens: list[str], types: tuple[int, ...]) -> list[str]:
    return [token for token, type_ in zip(tokens, types, strict=True) if type_ == kind]


def _prefix(metadata: Fields, tokens: list[str], *, default: bool) -> str | None:
    """The first token of every sequence. llama.cpp has a default per kind of tokenizer."""
    if not metadata.flag("tokenizer.ggml.add_bos_token", default):
        return None
    if not default or metadata.get("tokenizer.ggml.bos_token_id") is not None:
        return tokens[metadata.integer("tokenizer.ggml.bos_token_id", maximum=len(tokens) - 1)]
    return None
