"""The shortlist of a bundle: the checkpoint's own, a file, or trained on parallel texts."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from export.checkpoint import Checkpoint
from export.errors import SourceError, UnsupportedError
from export.ibm_model import lexical_probabilities
from export.readers.shortlist import read_marian_shortlist
from model.bundle import SHORTLIST_FILE, ShortlistOrigin, ShortlistSpec
from model.config import Kind
from model.shortlist import Shortlist

AUTO, OFF = "auto", "off"
MAX_TEXT_BYTES = 1 << 28
MAX_TOKENS = 100  # per side; longer pairs are left out
NUM_FREQUENT = NUM_BEST = 50  # candidates for every source, and per source token
NUM_HELD_OUT = 200  # at most; pairs that measure the loss from the shortlist


@dataclass(frozen=True, eq=False)
class ShortlistSource:
    """A shortlist, and texts to measure its loss; empty: those of this repository."""

    shortlist: Shortlist
    origin: ShortlistOrigin
    held_out: tuple[str, ...] = ()

    @property
    def spec(self) -> ShortlistSpec:
        """The manifest's entry."""
        return ShortlistSpec(file=SHORTLIST_FILE, origin=self.origin)


def choose_shortlist(
    checkpoint: Checkpoint, choice: str, texts: Path | None
) -> ShortlistSource | None:
    """The shortlist that the command line asks for.

    Args:
        checkpoint: the model.
        choice: ``auto`` for the checkpoint's own, if it has one; ``off``; or the path of a binary
            shortlist of Marian.
        texts: a file of parallel texts to train a shortlist on, if ``choice`` is ``auto``.

    Raises:
        SourceError: a file is unreadable, damaged or of another vocabulary.
        UnsupportedError: the model has no source, or several languages.
    """
    if choice == OFF:
        return None
    if choice == AUTO and texts is None:
        if checkpoint.shortlist is None:
            return None
        return ShortlistSource(checkpoint.shortlist, ShortlistOrigin.CHECKPOINT)
    if checkpoint.config.kind != Kind.ENCODER_DECODER:
        raise UnsupportedError(
            f"--shortlist: only for an encoder_decoder, and its kind is {checkpoint.config.kind}"
        )
    if checkpoint.languages:
        raise UnsupportedError("--shortlist: only for one pair of languages; the model has more")
    if texts is not None:
        return _from_texts(checkpoint, texts)
    shortlist = read_marian_shortlist(Path(choice), checkpoint.config.vocabulary_size)
    return ShortlistSource(shortlist, ShortlistOrigin.CHECKPOINT)


def read_pairs(path: Path) -> list[tuple[str, str]]:
    """The pairs of a UTF-8 file: one line each, source and target separated by a tab.

    Raises:
        SourceError: it is unreadable, too large, without pairs, or a line has not exactly one tab.
    """
    try:
        if path.stat().st_size > MAX_TEXT_BYTES:
            raise SourceError(f"{path}: more than {MAX_TEXT_BYTES} bytes")
        lines = path.read_text("utf-8").split("\n")
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SourceError(f"{path}: is not UTF-8: {error}") from error
    pairs = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        source, *targets = line.rstrip("\r").split("\t")
        if len(targets) != 1:
            raise SourceError(f"{path}: line {number} has {len(targets)} tabs, not 1")
        pairs.append((source, targets[0]))
    if not pairs:
        raise SourceError(f"{path}: has no pairs")
    return pairs


def _from_texts(checkpoint: Checkpoint, path: Path) -> ShortlistSource:
    """Trains a shortlist; every tenth pair is held out, up to :data:`NUM_HELD_OUT`."""
    pairs = read_pairs(path)
    held_out = pairs[::10][:NUM_HELD_OUT]
    rest = [pair for index, pair in enumerate(pairs) if index % 10 or index // 10 >= NUM_HELD_OUT]
    shortlist = train_shortlist(checkpoint, rest or pairs)
    return ShortlistSource(shortlist, ShortlistOrigin.IBM1, tuple(source for source, _ in held_out))


def train_shortlist(checkpoint: Checkpoint, pairs: Sequence[tuple[str, str]]) -> Shortlist:
    """The most probable translations of each source token by IBM model 1, and the token itself."""
    tokenizer = Tokenizer.from_str(checkpoint.tokenizer_json)
    size = checkpoint.config.vocabulary_size
    rows = []
    for source, target in zip(
        tokenizer.encode_batch([source for source, _ in pairs]),
        tokenizer.encode_batch([target for _, target in pairs], add_special_tokens=False),
        strict=True,
    ):
        if 0 < len(source.ids) <= MAX_TOKENS and 0 < len(target.ids) <= MAX_TOKENS:
            rows.append(([i for i in source.ids if i < size], [i for i in target.ids if i < size]))
    if not rows:
        raise SourceError(f"no pair has 1 to {MAX_TOKENS} tokens on both sides")
    table = lexical_probabilities(rows)
    order = np.lexsort((table.targets, -table.probabilities, table.sources))
    lists: list[list[int]] = [[token] for token in range(size)]
    for source, target in zip(table.sources[order], table.targets[order], strict=True):
        if len(lists[source]) <= NUM_BEST:
            lists[source].append(int(target))
    counts = Counter(token for _, target in rows for token in target)
    by_count = sorted(counts, key=lambda token: (-counts[token], token))
    frequent = [*by_count[:NUM_FREQUENT], *checkpoint.special_tokens.eos]
    return Shortlist.of_lists(lists, frequent, size)
