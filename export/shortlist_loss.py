"""Measures the loss from a shortlist: greedy translations with it, compared with those without."""

import importlib
import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from tokenizers import Tokenizer

from export.apply_scheme import cpu_runnable
from export.checkpoint import Checkpoint
from export.decoding import Ids, greedy_tokens, lengths_of, prefill_source
from export.evaluation_texts import PASSAGES, SENTENCES
from export.fidelity.figures import chrf
from export.importers.samples import source_sentences
from export.precision_schemes import PrecisionScheme
from export.runtime import DecodeSession, Floats, Session
from export.shortlists import ShortlistSource
from export.signatures import Signatures
from model.bundle import SHORTLIST_FILE, Parity, ShortlistLoss
from model.shortlist import Shortlist

BATCH = 16
MAX_STEPS = 128


def evaluation_sentences(language: str | None) -> tuple[str, ...]:
    """This repository's sentences in ``language``; English ones if there are none."""
    language = language if language in SENTENCES else "en"
    passages = PASSAGES if language == "en" else ()
    parts = [f"{part}." for text in passages for part in text.rstrip(".").split(". ")]
    return (*source_sentences(language), *SENTENCES[language], *parts)


def add_shortlist(
    checkpoint: Checkpoint,
    source: ShortlistSource,
    scheme: PrecisionScheme,
    directory: Path,
    graphs: Signatures,
    parity: Parity,
) -> Parity:
    """Writes the shortlist into ``directory``. Returns ``parity`` with its loss."""
    with cpu_runnable(scheme, graphs, directory) as folder:
        loss = measure_shortlist(checkpoint, source, folder, graphs)
    (directory / SHORTLIST_FILE).write_bytes(source.shortlist.to_bytes())
    return msgspec.structs.replace(parity, shortlist=loss)


def measure_shortlist(
    checkpoint: Checkpoint, source: ShortlistSource, directory: Path, graphs: Signatures
) -> ShortlistLoss:
    """Translates the held-out texts, or this repository's, with and without the shortlist."""
    tokenizer = Tokenizer.from_str(checkpoint.tokenizer_json)
    size = checkpoint.config.vocabulary_size
    texts = source.held_out or evaluation_sentences(checkpoint.source_language)
    rows = [[i for i in encoded.ids if i < size] for encoded in tokenizer.encode_batch(list(texts))]
    limit = min(MAX_STEPS, checkpoint.config.position.max_positions - 1)
    rows = [row for row in rows if 0 < len(row) <= limit]
    whole, short = (
        _translate(checkpoint, rows, directory, graphs, shortlist)
        for shortlist in (None, source.shortlist)
    )
    outputs = [tokenizer.decode_batch(tokens) for tokens in (short, whole)]
    sizes = [len(source.shortlist.candidates(row)) for row in rows]
    return ShortlistLoss(
        num_sentences=len(rows),
        num_identical=sum(a == b for a, b in zip(whole, short, strict=True)),
        mean_candidates=float(np.mean(sizes)),
        chrf=chrf(*outputs),
        bleu=_bleu(*outputs),
    )


def _translate(
    checkpoint: Checkpoint,
    sources: list[list[int]],
    directory: Path,
    graphs: Signatures,
    shortlist: Shortlist | None,
) -> list[list[int]]:
    """Greedy translations, without end-of-sequence tokens."""
    longest = max(map(len, sources))
    factor = checkpoint.max_length_factor or math.inf
    num_steps = math.ceil(
        min(factor * longest, MAX_STEPS, checkpoint.config.position.max_positions - 1)
    )
    encoder = Session(directory, graphs["encode"])
    decoder = DecodeSession(
        directory,
        graphs["decode"],
        num_slots=BATCH,
        capacity=num_steps + 1,
        source_capacity=longest,
    )
    found = []
    for first in range(0, len(sources), BATCH):
        batch = sources[first : first + BATCH]
        decoder.clear()
        prefill_source(encoder, decoder, batch)
        found += _decode(checkpoint, decoder, batch, num_steps, shortlist)
    return found


def _decode(
    checkpoint: Checkpoint,
    decoder: DecodeSession,
    sources: list[list[int]],
    num_steps: int,
    shortlist: Shortlist | None,
) -> list[list[int]]:
    special = checkpoint.special_tokens
    lengths = lengths_of(sources)
    mask = _mask(shortlist, sources, special.eos)
    start = special.decoder_start if special.decoder_start is not None else special.pad
    tokens: Ids = np.full(len(sources), start, np.int64)
    outputs: list[list[int]] = [[] for _ in sources]
    is_open = [True] * len(sources)
    for index in range(num_steps):
        logits = decoder.step(
            token_ids=tokens[:, None],
            logit_positions=np.arange(len(sources)),
            num_cached_tokens=np.full(len(sources), index),
            num_new_tokens=np.ones(len(sources)),
            max_total_length=np.array(index + 1),
            source_lengths=lengths,
            max_source_length=lengths.max(),
        )
        tokens = greedy_tokens(logits + mask, special.suppressed)
        if index == 0 and special.forced_first is not None:
            tokens[:] = special.forced_first
        for row, token in enumerate(tokens.tolist()):
            is_open[row] = is_open[row] and token not in special.eos
            if is_open[row]:
                outputs[row].append(token)
        if not any(is_open):
            break
    return outputs


def _mask(
    shortlist: Shortlist | None, sources: Sequence[Sequence[int]], eos: Sequence[int]
) -> Floats:
    """The mask to add to logits ``[rows, vocabulary]``: -inf for tokens that are not candidates."""
    if shortlist is None:
        return np.zeros((1, 1), np.float32)
    mask = np.full((len(sources), shortlist.vocabulary_size), -np.inf, np.float32)
    for row, source in zip(mask, sources, strict=True):
        row[shortlist.candidates(source, eos)] = 0
    return mask


def _bleu(outputs: list[str], references: list[str]) -> float | None:
    """BLEU from sacrebleu; None if it is not installed."""
    if importlib.util.find_spec("sacrebleu") is None:
        return None
    sacrebleu = importlib.import_module("sacrebleu")
    return float(sacrebleu.corpus_bleu(outputs, [references]).score)
