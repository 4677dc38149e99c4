"""Whatever a node sends is a good reply or an error of ours; any other exception is a finding."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from hypothesis import given
from hypothesis import strategies as st

from steppe.core.errors import SteppeError
from steppe.flower import reply_checks, reply_inbox
from steppe.flower.reply_checks import check_reply, find_largest_size, read_introduction
from steppe.flower.reply_inbox import Arriving, read_message
from tests.flower import memory  # noqa: F401 - as a process of Flower, which has a number
from tests.fuzz.damage import ANY_BYTES, Damage
from tests.fuzz.inputs import fuzz, is_sentence, within

pytestmark = pytest.mark.slow
LIKE = {"update": torch.zeros(6, dtype=torch.float64), "up/scaffold/delta": torch.zeros(6, dtype=torch.float64)}
EXPECTED: dict[str, Any] = {"federation": "test", "client": 1, "round": 2, "fingerprint": "0f", "samples": 7}
TOLD: dict[str, Any] = {**EXPECTED, "loss": 0.5, "drift": 0.1, "seconds": 1.0}
LIMIT = find_largest_size(LIKE)
VALUES = st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(max_size=20), st.binary(max_size=20),
                   st.booleans(), st.lists(st.integers(0, 9), max_size=3),
                   st.sampled_from([2**40, 10**8, -1, 0, float("nan"), float("inf"), "x" * 5000]))  # fmt: skip
FACTS = st.dictionaries(st.sampled_from([*TOLD, "code", "more"]), VALUES, max_size=4)


def _good() -> dict[str, Any]:
    return {"facts": ConfigRecord(dict(TOLD)), "arrays": ArrayRecord({k: Array(v.numpy()) for k, v in LIKE.items()})}


@st.composite
def contents(draw: Any) -> RecordDict:
    """An honest reply with a few things changed: facts, arrays' bytes and headers, kinds of records."""
    records = _good()
    for _ in range(draw(st.integers(1, 3))):
        match draw(st.sampled_from(["facts", "lost", "array", "kind", "more"])):
            case "facts":
                records["facts"] = ConfigRecord({**TOLD, **draw(FACTS)})
            case "lost":
                gone = draw(st.sampled_from(sorted(TOLD)))
                records["facts"] = ConfigRecord({k: v for k, v in TOLD.items() if k != gone})
            case "array":
                name, good = draw(st.sampled_from(sorted(LIKE))), Array(LIKE["update"].numpy())
                raw = draw(ANY_BYTES)(good.data)
                shape = draw(st.sampled_from([good.shape, (2**33,), (), (-1,), (6, 1)]))
                records["arrays"] = ArrayRecord(
                    {**{k: Array(v.numpy()) for k, v in LIKE.items()}, name: Array(good.dtype, shape, good.stype, raw)}
                )
            case "kind":
                made = draw(st.sampled_from([MetricRecord({"client": 1}), ArrayRecord({}), ConfigRecord({})]))
                records[draw(st.sampled_from(["facts", "arrays", "refusal"]))] = made
            case "more":
                records[draw(st.text(min_size=1, max_size=8))] = ConfigRecord(draw(FACTS))
    return RecordDict(records)


def _read(message: Message, reply: bool) -> None:
    """Only an error of ours is a refusal here. The server survives any other; this test does not."""
    try:
        with within(20):
            if reply:
                arrays, _ = check_reply(message, EXPECTED, LIKE)
                assert {k: v.shape for k, v in arrays.items()} == {k: v.shape for k, v in LIKE.items()}
            else:
                client, samples = read_introduction(message, "test", 3, 1000)
                assert 0 <= client < 3
                assert 1 <= samples <= 1000
    except SteppeError as error:
        is_short(str(error))


def is_short(text: str) -> None:
    """Fit for a line of a log."""
    assert len(text) < 600
    assert text.isprintable()


def test_a_stray_exception_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def stray(*_: Any) -> None:
        raise RuntimeError("torch says no")

    monkeypatch.setattr(reply_checks, "read_array", stray)
    with pytest.raises(RuntimeError, match="torch says no"):
        _read(Message(RecordDict(_good()), 1, MessageType.TRAIN), True)
    monkeypatch.setattr(reply_inbox, "measure_size", stray)
    with pytest.raises(RuntimeError, match="torch says no"):
        _read_bytes(0, lambda data: data)


@fuzz(2)
@given(content=contents(), reply=st.booleans())
def test_any_reply_and_any_introduction(content: RecordDict, reply: bool) -> None:
    _read(Message(content, 1, MessageType.TRAIN), reply)


@cache
def _objects() -> tuple[str, dict[str, bytes]]:
    message = Message(RecordDict(_good()), 1, MessageType.TRAIN)
    return message.object_id, {name: thing.deflate() for name, thing in get_all_nested_objects(message).items()}


def _read_bytes(which: int, damage: Damage) -> None:
    name, objects = _objects()
    hurt = sorted(objects)[which % len(objects)]
    objects = {**objects, hurt: damage(objects[hurt])}
    try:
        with within(20):
            message = read_message(Arriving(name, list(objects), objects), LIMIT)
    except SteppeError as error:
        is_sentence(error)
    else:
        _read(message, True)


@fuzz(2)
@given(which=st.integers(0, 20), damage=ANY_BYTES)
def test_any_bytes_in_the_place_of_an_object(which: int, damage: Damage) -> None:
    _read_bytes(which, damage)
