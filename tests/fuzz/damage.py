"""What may happen to a file: cut, overwritten, zeroed, replaced, nested, or written by somebody who means harm."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from tests.fuzz.inputs import WILD, nested

Damage = Callable[[bytes], bytes]


def _place(raw: bytes, share: float) -> int:
    return int(share * len(raw))


def _cut(at: float) -> Damage:
    return lambda raw: raw[: _place(raw, at)]


def _overwrite(at: float, new: bytes) -> Damage:
    return lambda raw: raw[: _place(raw, at)] + new + raw[_place(raw, at) + len(new) :]


def _insert(at: float, new: bytes) -> Damage:
    return lambda raw: raw[: _place(raw, at)] + new + raw[_place(raw, at) :]


def _flip(at: float, bit: int) -> Damage:
    def change(raw: bytes) -> bytes:
        place = min(_place(raw, at), len(raw) - 1)
        return raw[:place] + bytes([raw[place] ^ 1 << bit]) + raw[place + 1 :] if raw else raw

    return change


SHARE = st.one_of(st.floats(0, 1), st.floats(0, 0.02))  # headers are worth more looks
BYTES = st.one_of(
    st.binary(min_size=1, max_size=16),
    st.sampled_from([b"\0" * 8, b"\xff" * 8, b"PK\x03\x04", b"\x80\x04\x95", b"NaN", b"1e999", b"-1", b"[" * 3000, b"]",
                     b"\xef\xbb\xbf", b"9" * 5000, b"\n", b'"', b"{}", (2**36).to_bytes(8, "little")]),
)  # fmt: skip
ANY_BYTES: st.SearchStrategy[Damage] = st.one_of(
    st.builds(_cut, SHARE),
    st.builds(_overwrite, SHARE, BYTES),
    st.builds(_insert, SHARE, BYTES),
    st.builds(_flip, SHARE, st.integers(0, 7)),
    st.one_of(BYTES, st.binary(max_size=200), st.just(b"")).map(lambda new: lambda raw: new),
)


def _spots(content: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where in a JSON value something else could stand."""
    inside = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    return [way, *(spot for key, value in inside for spot in _spots(value, (*way, key)))]


def _put(content: Any, way: tuple[Any, ...], new: Any, delete: bool) -> Any:
    if not way:
        return new
    copy = dict(content) if isinstance(content, dict) else list(content)
    if delete and len(way) == 1:
        del copy[way[0]]
    else:
        copy[way[0]] = _put(content[way[0]], way[1:], new, delete)
    return copy


def _edit(share: float, new: Any, delete: bool) -> Damage:
    """Another value, or none, somewhere in a JSON file, or in a line of one that has an object per line."""

    def change(raw: bytes) -> bytes:
        lines = [raw] if raw.startswith(b"{\n") else raw.splitlines() or [b"{}"]
        line = min(int(share * len(lines)), len(lines) - 1)
        content = json.loads(lines[line])
        spots = _spots(content)
        edited = _put(content, spots[min(int(share * len(spots)), len(spots) - 1)], new, delete)
        lines[line] = json.dumps(edited, default=str, skipkeys=True).encode()
        return b"\n".join(lines)

    return change


ANY_JSON: st.SearchStrategy[Damage] = st.one_of(
    ANY_BYTES,
    st.builds(_edit, st.floats(0, 1), WILD, st.booleans()),
    st.sampled_from([b"[" * 100_000, json.dumps(nested(900)).encode(), b"\xff\xfe{}", b"null", b"[]", b"3"]).map(
        lambda new: lambda raw: new
    ),
)
