"""The alphabets of a pickled Keras ``Tokenizer``, without unpickling.

A pickle is a program that can call any function. Here, its operations only build dictionaries:
the few classes that such files name become empty dictionaries, and any other name or operation is
an error. Nothing is imported or called.
"""

import pickletools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from export.errors import SourceError

MAX_BYTES = 2**20
# The classes that such files name; an object of any of them becomes an empty dictionary.
CLASSES = {
    ("keras.src.legacy.preprocessing.text", "Tokenizer"),
    ("keras.preprocessing.text", "Tokenizer"),
    ("collections", "OrderedDict"),
    ("collections", "defaultdict"),
}
INT = ("builtins", "int")  # the argument of defaultdict
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
NUMBERS_AND_TEXTS = {"BININT", "BININT1", "BININT2", "SHORT_BINUNICODE", "BINUNICODE"}
TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1}


class _Mark:
    """Marks where the items of a dictionary begin on the stack."""


class _Class(tuple[str, str]):
    """The module and name of a class."""


class _Reader:
    """The stack and the memo of a pickle; see ``pickletools`` for the operations."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: list[Any] = []

    def run(self, data: bytes) -> Any:
        argument: Any  # of the operation's type
        for operation, argument, _ in pickletools.genops(data):
            name = operation.name
            if name == "STOP":
                return self.stack.pop()
            if name in NUMBERS_AND_TEXTS:
                self.stack.append(argument)
            elif name in CONSTANTS:
                self.stack.append(CONSTANTS[name])
            elif name in TUPLES:
                self._tuple(TUPLES[name])
            elif name in ("BINGET", "LONG_BINGET"):
                self.stack.append(self.memo[argument])
            elif name in OPERATIONS:
                OPERATIONS[name](self)
            else:
                raise ValueError(f"the operation {name} is not one of a vocabulary")
        raise ValueError("it has no end")

    def dictionary(self) -> None:
        self.stack.append({})

    def mark(self) -> None:
        self.stack.append(_Mark())

    def memoize(self) -> None:
        self.memo.append(self.stack[-1])

    def name_class(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        if (module, name) not in CLASSES and (module, name) != INT:
            raise ValueError(f"it names {module}.{name}, which is not part of a vocabulary")
        self.stack.append(_Class((module, name)))

    def new_object(self) -> None:
        """``Class()`` or ``defaultdict(int)``: an empty dictionary."""
        arguments, class_ = self.stack.pop(), self.stack.pop()
        is_known = isinstance(class_, _Class) and tuple(class_) in CLASSES
        if not is_known or arguments not in ((), (_Class(INT),)):
            raise ValueError("it makes an object that is not a dictionary")
        self.stack.append({})

    def set_attributes(self) -> None:
        attributes, target = self.stack.pop(), self.stack[-1]
        if not (isinstance(attributes, dict) and isinstance(target, dict)):
            raise ValueError("it sets attributes of something else than an object")
        target.update(attributes)

    def set_items(self) -> None:
        items: list[Any] = []
        while not isinstance(self.stack[-1], _Mark):
            items.append(self.stack.pop())
        self.stack.pop()
        self._set(reversed(items[1::2]), reversed(items[::2]))

    def set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set((key,), (value,))

    def _set(self, keys: Iterable[Any], values: Iterable[Any]) -> None:
        target, keys = self.stack[-1], tuple(keys)
        if not isinstance(target, dict) or not all(isinstance(key, str | int) for key in keys):
            raise ValueError("a dictionary has keys that are neither texts nor integers")
        target.update(zip(keys, values, strict=True))

    def _tuple(self, size: int) -> None:
        items = tuple(self.stack.pop() for _ in range(size))
        self.stack.append(items)


OPERATIONS = {
    "PROTO": lambda _reader: None,
    "FRAME": lambda _reader: None,
    "EMPTY_DICT": _Reader.dictionary,
    "MARK": _Reader.mark,
    "MEMOIZE": _Reader.memoize,
    "STACK_GLOBAL": _Reader.name_class,
    "REDUCE": _Reader.new_object,
    "NEWOBJ": _Reader.new_object,
    "BUILD": _Reader.set_attributes,
    "SETITEM": _Reader.set_item,
    "SETITEMS": _Reader.set_items,
}


def read_vocabularies(path: Path, names: tuple[str, ...]) -> list[dict[str, int]]:
    """``word_index`` of the tokenizers ``names``: the id of each token, from 1.

    Raises:
        SourceError: the file is damaged, or does more than store these.
    """
    data = path.read_bytes()
    if len(data) > MAX_BYTES:
        raise SourceError(f"{path}: {len(data)} bytes are more than a vocabulary has")
    try:
        content = _Reader().run(data)
    except (ValueError, IndexError, UnicodeDecodeError, TypeError) as error:
        raise SourceError(f"{path}: not read as a vocabulary: {error}") from error
    return [_word_index(path, content, name) for name in names]


def _word_index(path: Path, content: Any, name: str) -> dict[str, int]:
    tokenizer = content.get(name) if isinstance(content, dict) else None
    index = tokenizer.get("word_index") if isinstance(tokenizer, dict) else None
    if not isinstance(index, dict) or not index:
        raise SourceError(f"{path}: {name}: no word_index")
    is_typed = all(isinstance(key, str) and type(id_) is int for key, id_ in index.items())
    if not is_typed or sorted(index.values()) != list(range(1, len(index) + 1)):
        raise SourceError(f"{path}: {name}.word_index: not tokens with the ids from 1 on")
    return index
