"""The number of values in a JSON body, counted before it is decoded."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.errors import InvalidArgumentError
from server.frontends.http import json_size
from server.frontends.http.body import json_decoder
from server.frontends.http.json_size import MAX_VALUES, MIN_SCANNED_BYTES, has_too_many_values

TEXTS = st.text(st.sampled_from('a,[{"\\\n\u00e9'), max_size=8)
VALUES = st.recursive(
    st.integers(0, 9) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
)


def count(value: Any) -> int:
    """Lists and objects, and their items but for the first of each."""
    if not isinstance(value, list | dict):
        return 0
    items = list(value.values()) if isinstance(value, dict) else value
    return 1 + max(0, len(items) - 1) + sum(map(count, items))


@given(value=VALUES, is_ascii=st.booleans(), piece_bytes=st.sampled_from([2, 3, 7, 1 << 18]))
def test_values_are_counted_outside_of_strings(
    value: Any, is_ascii: bool, piece_bytes: int
) -> None:
    data = json.dumps(value, ensure_ascii=is_ascii).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_size, "MIN_SCANNED_BYTES", 0)
        patch.setattr(json_size, "_PIECE_BYTES", piece_bytes)
        assert not has_too_many_values(data, count(value))
        assert not count(value) or has_too_many_values(data, count(value) - 1)


@pytest.mark.parametrize("item", ["[]", "1", '""', "{}", '"a":1'])
def test_bodies_with_too_many_values_are_not_decoded(item: str) -> None:
    class Body(msgspec.Struct):
        values: Any

    decode = json_decoder(Body)
    items = ",".join([item] * (MAX_VALUES + 1))
    items = f"{{{items}}}" if ":" in item else f"[{items}]"
    with pytest.raises(InvalidArgumentError, match=f"body: has more than {MAX_VALUES} values"):
        decode(f'{{"values":{items}}}'.encode())
    text = "[,{" * MIN_SCANNED_BYTES
    assert decode(json.dumps({"values": text}).encode()).values == text
