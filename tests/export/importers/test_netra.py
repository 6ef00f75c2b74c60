"""The importer of netra-transliterate against its Keras layers, written out in numpy."""

import io
import json
import pickle
import re
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from export.checkpoint import Checkpoint
from export.errors import SourceError, UnsupportedError, WeightsError
from export.importers.netra import VOCABULARIES, VOCABULARY_FILE
from export.importers.registry import import_path
from export.readers.keras_vocabulary import read_vocabularies
from export.sources import DEFAULT_SOURCES, load_checkpoint
from model.kernels import Step
from model.transformer import from_weights

WORDS = (
    *("angkor", "phnompenh", "soksabay", "khnhom", "srolanh", "bat", "tov", "a", "attention"),
    *("Siem Reap!", "battambang", "abcdefghijklmnopqrstuvwxyzabc", "kampuchea", "aksor", "rean"),
)
MAX_CHARACTERS = 32
Array = np.ndarray[Any, np.dtype[Any]]


def folder() -> Path:
    return DEFAULT_SOURCES["netra"].locate()


def sigmoid(x: Array) -> Array:
    result: Array = 1 / (1 + np.exp(-x))
    return result


class KerasModel:
    """The layers of the package's encoder and decoder, by the formulas of Keras."""

    def __init__(self) -> None:
        (archive,) = folder().glob("*.keras")
        with zipfile.ZipFile(archive) as file:
            data = file.read("model.weights.h5")
        with h5py.File(io.BytesIO(data), "r") as weights:
            self.weights: dict[str, Array] = {}
            weights["layers"].visititems(self._add)
        self.source, self.target = read_vocabularies(folder() / VOCABULARY_FILE, VOCABULARIES)
        self.characters = {id_: character for character, id_ in self.target.items()}

    def _add(self, name: str, value: Any) -> None:
        if isinstance(value, h5py.Dataset):
            self.weights[name] = value[()]

    def gru_step(self, layer: str, x: Array, state: Array) -> Array:
        """``reset_after``: the reset gate applies to the product with the state, and its bias."""
        kernel, recurrent, biases = (self.weights[f"{layer}/cell/vars/{n}"] for n in range(3))
        from_input = np.split(x @ kernel + biases[0], 3)
        from_state = np.split(state @ recurrent + biases[1], 3)
        update = sigmoid(from_input[0] + from_state[0])
        reset = sigmoid(from_input[1] + from_state[1])
        new = np.tanh(from_input[2] + reset * from_state[2])
        result: Array = update * state + (1 - update) * new
        return result

    def gru(self, layer: str, x: Array) -> Array:
        state = np.zeros(64, np.float32)
        states = []
        for row in x:
            state = self.gru_step(layer, row, state)
            states.append(state)
        return np.stack(states)

    def transliterate(self, word: str) -> list[int]:
        """Greedy ids, as the package's search with one beam."""
        letters = [self.source[letter] for letter in re.sub("[^a-z]", "", word.lower())][-25:]
        x = self.weights["embedding/vars/0"][letters + [0] * (25 - len(letters))]
        forward = self.gru("bidirectional/forward_layer", x)
        backward = self.gru("bidirectional/backward_layer", x[::-1])[::-1]
        matrix, bias = (self.weights[f"time_distributed/layer/vars/{n}"] for n in range(2))
        source = np.concatenate([forward, backward], -1) @ matrix + bias
        state, token, ids = np.zeros(64, np.float32), self.target["\t"], list[int]()
        while len(ids) < MAX_CHARACTERS:
            state = self.gru_step("gru", self.weights["embedding_1/vars/0"][token], state)
            scores = np.tanh(state + source) @ self.weights["additive_attention/vars/0"]
            weights = np.exp(scores - scores.max())
            context = weights / weights.sum() @ source
            matrix, bias = (self.weights[f"dense/vars/{n}"] for n in range(2))
            token = int((np.concatenate([state, context]) @ matrix + bias).argmax())
            if token == self.target["\n"]:
                break
            ids.append(token)
        return ids


@torch.no_grad()
def ours(checkpoint: Checkpoint, word: str) -> list[int]:
    """Greedy ids, step by step."""
    special = checkpoint.special_tokens
    model = from_weights(checkpoint.config, checkpoint.weights)
    source = Tokenizer.from_str(checkpoint.tokenizer_json).encode(word).ids
    lengths = torch.tensor([len(source)], dtype=torch.int32)
    states = model.encode_source(torch.tensor([source]), lengths)
    token, tokens = special.decoder_start, list[int]()
    while len(tokens) < MAX_CHARACTERS:
        step = Step.whole(torch.tensor([1]), lengths)
        hidden, states = model.decode(torch.tensor([[token]]), step, states)
        logits = model.logits(hidden)[0, 0]
        logits[list(special.suppressed)] = -torch.inf
        token = int(logits.argmax())
        if token in special.eos:
            break
        tokens.append(token)
    return tokens


def test_characters_equal_those_of_keras() -> None:
    checkpoint, keras = load_checkpoint("netra"), KerasModel()
    tokenizer = Tokenizer.from_str(checkpoint.tokenizer_json)
    first = len(keras.source) + 1
    for word in WORDS:
        expected = keras.transliterate(word)
        tokens = ours(checkpoint, word)
        assert [token - first for token in tokens] == expected, word
        assert tokenizer.decode(tokens) == "".join(keras.characters[id_] for id_ in expected)
    assert tokenizer.decode(ours(checkpoint, "angkor")) == "អង្ករ"


def _copy(target: Path, **replaced: bytes) -> Path:
    """The package's folder with other members of the archive (``config``, ``weights``)."""
    (archive,) = folder().glob("*.keras")
    names = {"config": "config.json", "weights": "model.weights.h5"}
    with zipfile.ZipFile(archive) as file:
        members = {name: file.read(member) for name, member in names.items()} | replaced
    with zipfile.ZipFile(target / "model.keras", "w") as file:
        for name, member in names.items():
            file.writestr(member, members[name])
    (target / VOCABULARY_FILE).write_bytes((folder() / VOCABULARY_FILE).read_bytes())
    return target


def _config() -> str:
    (archive,) = folder().glob("*.keras")
    with zipfile.ZipFile(archive) as file:
        return file.read("config.json").decode()


def _hdf5(change: Any) -> bytes:
    (archive,) = folder().glob("*.keras")
    with zipfile.ZipFile(archive) as file:
        buffer = io.BytesIO(file.read("model.weights.h5"))
    with h5py.File(buffer, "r+") as weights:
        change(weights)
    return buffer.getvalue()


def test_all_missing_and_unexpected_weights_are_listed(tmp_path: Path) -> None:
    def change(weights: Any) -> None:
        del weights["layers/gru/cell/vars/1"]
        weights["layers/extra/vars/0"] = np.zeros(3, np.float32)

    with pytest.raises(WeightsError) as caught:
        import_path(_copy(tmp_path, weights=_hdf5(change)))
    assert "missing: layers/gru/cell/vars/1" in str(caught.value)
    assert "unexpected: layers/extra/vars/0" in str(caught.value)


def test_all_unsupported_settings_are_listed(tmp_path: Path) -> None:
    config = _config().replace('"reset_after": true', '"reset_after": false')
    config = config.replace('"merge_mode": "concat"', '"merge_mode": "sum"')
    with pytest.raises(UnsupportedError) as caught:
        import_path(_copy(tmp_path, config=config.encode()))
    assert str(caught.value).count("GRU.reset_after is False, not True") == 3
    assert "Bidirectional.merge_mode is 'sum'" in str(caught.value)


def _link(weights: Any) -> None:
    weights["layers/elsewhere"] = h5py.ExternalLink("/etc/hostname", "/")


def _cycle(weights: Any) -> None:
    weights["layers/gru/again"] = weights["layers"]


@pytest.mark.parametrize(
    ("change", "message"), [(_link, "a link to elsewhere"), (_cycle, "groups inside each other")]
)
def test_refuses_links_out_of_the_archive(tmp_path: Path, change: Any, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        import_path(_copy(tmp_path, weights=_hdf5(change)))


@pytest.mark.parametrize("replaced", [{"config": b"[]"}, {"weights": b"no HDF5"}])
def test_refuses_damaged_archives(tmp_path: Path, replaced: dict[str, bytes]) -> None:
    with pytest.raises(SourceError, match=r"model\.keras"):
        import_path(_copy(tmp_path, **replaced))


class _Evil:
    def __reduce__(self) -> Any:
        return (print, ("unpickled",))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (_Evil(), "names builtins.print"),
        ({"eng_tokenizer": [1]}, "the operation EMPTY_LIST"),
        ({"eng_tokenizer": {(): 1}}, "keys that are neither"),
        ({"eng_tokenizer": {}}, "eng_tokenizer: no word_index"),
        ({"eng_tokenizer": {"word_index": {"a": 2}}}, "ids from 1 on"),
        ({"eng_tokenizer": {"word_index": OrderedDict(a=1)}}, "khm_tokenizer: no word_index"),
    ],
)
def test_vocabularies_are_read_without_unpickling(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: object, message: str
) -> None:
    path = tmp_path / VOCABULARY_FILE
    path.write_bytes(pickle.dumps(content, protocol=4))
    with pytest.raises(SourceError, match=message):
        read_vocabularies(path, VOCABULARIES)
    assert capsys.readouterr().out == ""


def test_the_package_has_the_settings_that_the_importer_needs() -> None:
    """The archive names its layers once; the settings are not vacuous."""
    names = [layer["class_name"] for layer in json.loads(_config())["config"]["layers"]]
    assert names.count("AdditiveAttention") == names.count("Bidirectional") == 1
