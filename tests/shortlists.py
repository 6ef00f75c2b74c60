"""A model with a random shortlist: it forbids much, so that each source has other candidates."""

import shutil
from pathlib import Path

import msgspec
import numpy as np

from export.bundle_writer import write_bundle
from export.shortlists import ShortlistSource
from model.bundle import MANIFEST_FILE, SHORTLIST_FILE, Precision, ShortlistOrigin
from model.bundle_files import read_manifest, to_json
from model.shortlist import Shortlist
from tests import tiny
from tests.tiny_training import EOS

NUM_CANDIDATES = 4  # of each source token
HELD_OUT = ("3 March 2021", "7.8.1999")


def write_bundles(root: Path) -> None:
    """``tests.tiny.dates`` in int8: ``shortlist``, and the same without a shortlist: ``dates``."""
    checkpoint = tiny.dates()[0]
    size = checkpoint.config.vocabulary_size
    rng = np.random.default_rng(0)
    lists = [rng.choice(size, NUM_CANDIDATES).tolist() for _ in range(size)]
    source = ShortlistSource(
        Shortlist.of_lists(lists, [EOS], size), ShortlistOrigin.CHECKPOINT, HELD_OUT
    )
    path = write_bundle(
        checkpoint, root, name="shortlist", precision=Precision.INT8, shortlist=source
    )
    copy = root / "dates" / "1"
    shutil.copytree(path, copy)
    (copy / SHORTLIST_FILE).unlink()
    manifest = read_manifest(path)
    files = tuple(record for record in manifest.files if record.path != SHORTLIST_FILE)
    without = msgspec.structs.replace(manifest, name="dates", shortlist=None, files=files)
    (copy / MANIFEST_FILE).write_bytes(to_json(without))
