"""Pickled Keras vocabularies, which are read and never unpickled."""

import pickle
from collections import OrderedDict, defaultdict
from collections.abc import Iterator

from export.errors import ExportError
from export.readers.keras_vocabulary import read_vocabularies
from tests.fuzz.files import rewrite, scratch

SIZE = 512
NAMES = ("a", "b")


def run(data: bytes) -> None:
    path = rewrite(scratch("keras_vocabulary") / "vocabulary.pkl", data)
    try:
        found = read_vocabularies(path, NAMES)
    except ExportError as error:
        str(error).encode("utf-8", "surrogatepass")
        return
    assert all(sorted(index.values()) == list(range(1, len(index) + 1)) for index in found)


def seeds() -> Iterator[bytes]:
    index = {"word_index": {"x": 1, "<unk>": 2}}
    yield pickle.dumps({"a": index, "b": index, "max": 25}, protocol=4)
    yield pickle.dumps({"a": OrderedDict(index), "b": defaultdict(int, index)}, protocol=4)
