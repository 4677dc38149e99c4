"""How settings are written, and what is said where one is wrong."""

from __future__ import annotations

import math
import pickle
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from steppe import settings
from steppe.core.errors import SettingError
from steppe.registry import parse_addition


@pytest.mark.parametrize(
    ("text", "value"),
    [("7", 7), ("-0.5", -0.5), (".5", 0.5), ("1e3", 1000.0), ("0x10", 16), ("TRUE", True), ("null", None),
     ("inf", math.inf), ("'7'", "7"), ("[1, [2]]", [1, [2]]), ("{a = 1}", {"a": 1}), ("lda(0.1)", "lda(0.1)"),
     ("2024-01-01", "2024-01-01"), ("1\nlr = 2", "1\nlr = 2"), ("[" * 5000, "[" * 5000), ("9" * 5000, math.inf)],
    ids=lambda v: repr(v)[:20],
)  # fmt: skip
def test_values(text: str, value: Any) -> None:
    found = settings.parse_value(text)
    assert found == value
    assert type(found) is type(value)


def test_a_part_and_the_command_line_read_the_same() -> None:
    for text in ("1", "1e-7", ".5", "true", "none", "[1,2]", "a b"):
        assert settings.parse_named(f"x:y={text}") == ("x", {"y": settings.parse_value(text)})
        assert settings.parse_assignment(f"y={text}") == ("y", settings.parse_value(text))


@pytest.mark.parametrize("text", ["sam:rho", "sam:=1", "sam:rho=1,,eps=2"])
def test_settings_without_a_name_or_value(text: str) -> None:
    with pytest.raises(SettingError, match="write it as key=value"):
        parse_addition(text)


RULES = {"flat": (lambda x, height: x, "flat(1)"), "slope": (lambda x, a, b=2.0: x, "slope(1, 2)")}


@pytest.mark.parametrize(
    ("text", "numbers"), [("flat(3)", [3.0]), (" slope ( 1 ) ", [1.0]), ("slope(1,2)", [1.0, 2.0])]
)
def test_rules(text: str, numbers: list[float]) -> None:
    assert settings.parse_rule(text, "shape", RULES, given=1)[1] == numbers


@pytest.mark.parametrize("text", ["flat", "flat()", "flat(1,2)", "flat(nan)", "flat(-1)", "flat(1e300)", "flat(true)",
                                  "flat(a)", "flat(1", "flat((1))", "slope(1,2,3)"])  # fmt: skip
def test_wrong_rules(text: str) -> None:
    with pytest.raises(SettingError, match=r"^shape is .*(flat|slope)\(1") as caught:
        settings.parse_rule(text, "shape", RULES, given=1)
    assert caught.value.keys == ("shape",)


def test_an_unknown_rule_is_told_the_nearest() -> None:
    with pytest.raises(SettingError, match="shape is 'flatt\\(1\\)': there is no rule 'flatt'; did you mean 'flat'"):
        settings.parse_rule("flatt(1)", "shape", RULES, given=1)


@pytest.mark.parametrize("text", ["rho", "rho=1", "rho=2..1", "rho=1..nan", "rho=0..1:log", "rho=1..2:lin", "=1..2",
                                  "rho=1..1e999", "rho=1..2..3"])  # fmt: skip
def test_wrong_ranges(text: str) -> None:
    with pytest.raises(SettingError):
        settings.parse_range(text)


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    size: int = 0


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    several: list[Inner] = []
    share: float = Field(0.5, ge=0, lt=1)
    count: int | list[int] = 1
    text: str = ""
    needed: int


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({"shar": 1}, "there is no key 'shar'; did you mean 'share'?"),
        ({"several": [{"sizes": 1}]}, "there is no key 'several.0.sizes'; did you mean 'size'?"),
        ({"several": [{"size": "x"}]}, "several.0.size is 'x', but must be a whole number"),
        ({"share": 1.0}, "share is 1.0, but must be below 1"),
        ({"share": -1}, "share is -1, but must be at least 0"),
        ({"share": math.nan}, "share is nan, but must be a finite number"),
        ({"count": "x"}, "count is 'x', but must be a whole number or a list"),
        ({"text": [1] * 1000}, "…], but must be text"),
        ({}, "needed is missing"),
    ],
)
def test_explanations(content: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Outer(**({"needed": 1} if content else {}), **content)
    error = settings.explain(caught.value, Outer)
    assert told in str(error)
    assert len(str(error)) < 200
    assert error.keys == (next(iter(content), "needed"),)


def test_the_last_that_set_a_key_is_told() -> None:
    def refuse() -> None:
        with settings.tell_where({"a": "mine.toml", "b": "--set b=1"}):
            raise SettingError("a and b do not fit", "a", "b")

    with pytest.raises(SettingError, match=r"^--set b=1: a and b do not fit$"):
        refuse()


def test_errors_travel_between_processes() -> None:
    error = pickle.loads(pickle.dumps(SettingError("no", "a", "b")))
    assert (str(error), error.keys) == ("no", ("a", "b"))
