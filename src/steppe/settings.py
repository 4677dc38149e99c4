"""How settings are written, and the errors if one is wrong.

    0.5, none, [1, 5], lda                  a value
    lr=0.1                                  an assignment
    man:weight=0.1,layers=2                 a name with settings
    lookback.py:LookBack:rho=0.1            the user's own object (`references`) with settings
    fedsam:rho=0.5+man:weight=0.1           an algorithm with further parts
    lda(0.1, 10)                            a rule with numbers
    warmup(5)+steps(100,200;0.1)            a schedule
    rho=0.1,0.5                             a grid
    rho=0.01..1:log                         a range

Everything that reads text from a user uses these functions, so that a value means the same on the command line, in a
file and in a part's settings. Errors are `SettingError`s with the key; `tell_where` adds how it was written.
"""

from __future__ import annotations

import inspect
import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from steppe.core.errors import SettingError, SteppeError, quote, suggest_name
from steppe.core.schedules import SCHEDULES, cosine, exponential, linear, steps, warm_up

if TYPE_CHECKING:  # `steppe --help` does not need it
    from pydantic import BaseModel, ValidationError

WORDS: dict[str, Any] = {"none": None, "null": None, "true": True, "false": False}
LARGEST = 1e9  # of the numbers in a rule


# -------------------------------------------------------------------------------------------------------------- reading
def take_text(value: Any) -> str:
    """Return the value if it is text, otherwise an empty text; other types are refused later."""
    return value if isinstance(value, str) else ""


def parse_value(text: str) -> Any:
    """Return a number, true, false, none, a list or a table as TOML writes them; everything else is text.

    >>> [parse_value(text) for text in ("1", "1e-3", ".5", "None", "[1, 'a']", "lda(0.1)", "2024-01-01")]
    [1, 0.001, 0.5, None, [1, 'a'], 'lda(0.1)', '2024-01-01']
    """
    text = text.strip()
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    try:
        found = tomllib.loads(f"v = {text}")
    except (ValueError, RecursionError):  # also for a number with more digits than Python reads
        return text
    return found["v"] if list(found) == ["v"] and isinstance(found["v"], int | float | str | list | dict) else text


def parse_assignment(text: str) -> tuple[str, Any]:
    """Read `key=value`, or `--key=value` as an option of the command line.

    >>> parse_assignment("clip = none"), parse_assignment("--per-round=3")
    (('clip', None), ('per_round', 3))
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise SettingError(f"{quote(text)} is not a setting: write it as key=value")
    key = key.strip()
    return key[2:].replace("-", "_") if key.startswith("--") else key, parse_value(value)


def parse_named(text: str) -> tuple[str, dict[str, Any]]:
    """Read `name:key=value,key=value` as the name and its settings.

    >>> parse_named("sam:rho=0.05,eps=1e-7"), parse_named("ema")
    (('sam', {'rho': 0.05, 'eps': 1e-07}), ('ema', {}))
    """
    name, rest = split_name(text)
    return name, dict(parse_assignment(item) for item in split(rest, ","))


def split_name(text: str) -> tuple[str, str]:
    """Return a name, or the place of the user's own object, and the settings after it, still as text.

    >>> split_name("man:weight=0.1"), split_name("lookback.py:LookBack:rho=0.1"), split_name("package.module:Idea")
    (('man', 'weight=0.1'), ('lookback.py:LookBack', 'rho=0.1'), ('package.module:Idea', ''))
    """
    if place := re.fullmatch(r"((?:.+?\.py|[A-Za-z_][\w.]*):[A-Za-z_][\w.]*)(?::(.*))?", text.strip(), re.DOTALL):
        return place[1], place[2] or ""
    name, _, rest = text.partition(":")
    return name.strip(), rest


def shorten(text: str) -> str:
    """Return what to call a name or the user's own object, without its place and settings.

    >>> [shorten(text) for text in ("man:weight=0.1", "ideas/lookback.py:LookBack:rho=0.1", "own:__main__.LookBack")]
    ['man', 'LookBack', 'LookBack']
    """
    name = split_name(text)[0]
    return name.rpartition(":")[2].rpartition(".")[2] if ":" in name else name


def split_algorithm(text: str) -> tuple[str, list[str], list[str]]:
    """Read `fedsam:rho=0.5+man:weight=0.1` as an algorithm, its settings and further parts, all still as text.

    >>> split_algorithm("fedsam:rho=0.5,eps=1e+0+man:weight=0.1+ema")
    ('fedsam', ['rho=0.5', 'eps=1e+0'], ['man:weight=0.1', 'ema'])
    >>> split_algorithm("ideas.py:mine+./lookback.py:LookBack")
    ('ideas.py:mine', [], ['./lookback.py:LookBack'])
    """
    first, *add = re.split(r"\+(?=[^\d.]|\.\D)", text)  # not the sign of an exponent
    algorithm, settings = split_name(first)
    return algorithm, split(settings, ","), add


def parse_rule(text: str, key: str, rules: Mapping[str, tuple[Callable[..., Any], str]], given: int,
               more: int = 0) -> tuple[Callable[..., Any], list[float]]:  # fmt: skip
    """Return a rule such as `lda(0.1)` as its function and its numbers.

    `rules` are functions with an example each. Their first `given` arguments come from elsewhere; up to `more` numbers
    may follow those that a function takes.
    """
    match = re.fullmatch(r"\s*(\w+)\s*(?:\(([^()]*)\))?\s*", text)
    name = match[1] if match else text.partition("(")[0].strip()
    if name not in rules:
        raise SettingError(f"{key} is {quote(text)}: there is no rule {quote(name)}{suggest_name(name, rules)}", key)
    function, example = rules[name]
    taken = list(inspect.signature(function).parameters.values())[given:]
    least = sum(p.default is p.empty for p in taken)
    numbers = [parse_value(word) for word in split(match[2] or "", ",")] if match else []
    fits = least <= len(numbers) <= len(taken) + more and all(_is_number(n) and 0 <= n <= LARGEST for n in numbers)
    if not match or not fits:  # `cosine(0.1` without its bracket is not `cosine`
        raise SettingError(f"{key} is {quote(text)}: write {example}, with finite numbers, not negative and at most "
                           f"{LARGEST:g}", key)  # fmt: skip
    return function, [float(n) for n in numbers]


class Schedule(NamedTuple):
    """A schedule of the learning rate, as text says it."""

    warm_up: float  # rounds
    function: Callable[..., float]  # (round, rounds, *numbers, **named)
    numbers: list[float]
    named: dict[str, float]


def parse_schedule(text: str, key: str = "lr_schedule") -> Schedule:
    """Read `warmup(5)+cosine(0.1)`, `steps(100,200;0.1)` and the like.

    >>> parse_schedule("warmup(5)+cosine")[:1], parse_schedule("steps(100, 200; 0.5)")[2:]
    ((5.0,), ([100.0, 200.0], {'gamma': 0.5}))
    """
    first, plus, rest = text.partition("+")
    length = 0.0
    if first.strip().startswith("warmup"):
        _, numbers = parse_rule(first, key, {"warmup": (warm_up, "warmup(5), or warmup(5)+cosine")}, given=1)
        length, text = numbers[0], rest if plus else "constant"
        if length < 1:
            raise SettingError(f"{key} is {quote(first)}: a warm-up has at least 1 round", key)
    if text.strip().startswith("steps"):
        return Schedule(length, steps, *_parse_steps(text, key))
    known = {**SCHEDULES, "steps": (steps, "steps(100,200;0.1)"), "warmup": (warm_up, "warmup(5)+cosine")}
    function, numbers = parse_rule(text, key, known, given=2)
    if function in (exponential, cosine, linear) and any(n > 1 for n in numbers):
        raise SettingError(f"{key} is {quote(text)}: its number is a factor of the learning rate, at most 1", key)
    return Schedule(length, function, numbers, {})


def _parse_steps(text: str, key: str) -> tuple[list[float], dict[str, float]]:
    match = re.fullmatch(r"\s*steps\s*\(([^();]*);([^();]*)\)\s*", text)
    numbers = [parse_value(word) for word in split(match[1], ",")] if match else []
    gamma: Any = parse_value(match[2]) if match else None
    right = numbers and all(_is_number(n) and 0 <= n <= LARGEST for n in numbers) and _is_number(gamma)
    if not right or not 0 < gamma <= 1 or sorted(set(numbers)) != numbers:
        raise SettingError(f"{key} is {quote(text)}: write steps(100,200;0.1), with rounds that rise and a factor "
                           "above 0 and at most 1", key)  # fmt: skip
    return [float(n) for n in numbers], {"gamma": float(gamma)}


def parse_grid(text: str) -> tuple[str, list[str]]:
    """Read `key=value,value` as a key and its values, still as text.

    >>> parse_grid("partition=lda(0.1),dirichlet(1,2)")
    ('partition', ['lda(0.1)', 'dirichlet(1,2)'])
    """
    key, _, raw = text.partition("=")
    key, values = key.strip().removeprefix("settings."), split(raw, ",")
    if not key or not values or not all(values):
        raise SettingError("write it as key=value,value", "grid")
    return key, values


def parse_range(text: str) -> tuple[str, float, float, bool, bool]:
    """Read `key=low..high` or `key=low..high:log`: key, low, high, whether logarithmic, whether both ends are whole.

    >>> parse_range("rho=0.01..1:log"), parse_range("epochs=1..5")
    (('rho', 0.01, 1, True, False), ('epochs', 1, 5, False, True))
    """
    key, _, rest = text.partition("=")
    ends, colon, scale = rest.partition(":")
    numbers = [parse_value(word) for word in ends.split("..")]
    key = key.strip().removeprefix("settings.")
    right = key and len(numbers) == 2 and all(map(_is_number, numbers)) and (not colon or scale.strip() == "log")
    if not right or not -LARGEST <= numbers[0] < numbers[1] <= LARGEST:
        raise SettingError(f"after the key, write low..high or low..high:log, with low below high and both between "
                           f"-{LARGEST:g} and {LARGEST:g}", "range")  # fmt: skip
    if colon and numbers[0] <= 0:
        raise SettingError("a logarithmic range begins above 0", "range")
    return key, numbers[0], numbers[1], bool(colon), all(isinstance(n, int) for n in numbers)


def split(text: str, separator: str) -> list[str]:
    """Split a text, except at separators within brackets or quotes.

    >>> split("0.1, lda(1,2),[3,4]", ","), split("", ",")
    (['0.1', 'lda(1,2)', '[3,4]'], [])
    """
    pieces, depth, quoted = [""], 0, ""
    for letter in text:
        if quoted or letter in "\"'":
            quoted = "" if letter == quoted else quoted or letter
        depth += 0 if quoted else (letter in "([{") - (letter in ")]}")
        if letter == separator and not depth and not quoted:
            pieces.append("")
        else:
            pieces[-1] += letter
    return [piece.strip() for piece in pieces] if text.strip() else []


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


# ----------------------------------------------------------------------------------------------------------- explaining
@contextmanager
def tell_where(said: dict[str, str]) -> Iterator[None]:
    """Add to an error how the user wrote the last of its keys: `--set rho=-1`, or the name of a file."""
    try:
        yield
    except SteppeError as error:
        where = next((said[key] for key in reversed(said) if key in error.keys), None)
        if where is not None:
            error.args = (f"{where}: {error}",)
            error.keys = ()  # told once
        raise


def explain(error: ValidationError, model: type[BaseModel]) -> SettingError:
    """Return a sentence about the first wrong key; for an unknown key, with the nearest known name."""
    first, *others = error.errors(include_url=False)
    place = _find_place(first, model)
    where, key = ".".join(map(str, place)), str(place[0]) if place else ""
    if first["type"] == "extra_forbidden":
        return SettingError(
            f"there is no key {quote(where)}{suggest_name(str(place[-1]), _list_fields_at(model, place[:-1]))}", key
        )
    if first["type"] == "missing":
        return SettingError(f"{where} is missing", key)
    if first["type"] == "value_error":  # our own sentence
        ours = first["ctx"]["error"]
        return ours if isinstance(ours, SettingError) else SettingError(f"{where}: {ours}" if where else str(ours), key)
    reasons = dict.fromkeys(_explain_reason(e) for e in (first, *others) if _find_place(e, model) == place)
    return SettingError(f"{where} is {quote(first['input'])}, but must be {' or '.join(reasons)}", key)


def _explain_reason(error: Any) -> str:
    """Return what a value must be."""
    limits, kind = error.get("ctx", {}), error["type"]
    limit = next((_format_number(limits[word]) for word in ("gt", "ge", "lt", "le") if word in limits), "")
    if kind == "literal_error":
        wanted = str(limits["expected"]).replace("'", "")
        asked = error["input"] if isinstance(error["input"], str) else ""
        close = suggest_name(asked, re.split(r", | or ", wanted)).partition("?")[0]
        return wanted + (f"{close}?" if "did you mean" in close else "")
    phrases = {"greater_than": f"above {limit}", "greater_than_equal": f"at least {limit}",
               "less_than": f"below {limit}", "less_than_equal": f"at most {limit}",
               "finite_number": "a finite number",
               "string_pattern_mismatch": f"of the form {limits.get('pattern')}",
               "too_long": f"no longer than {limits.get('max_length')}",
               "too_short": f"at least {limits.get('min_length')} long"}  # fmt: skip
    if kind in phrases:
        return phrases[kind]
    kinds = {"int": "a whole number", "float": "a number", "string": "text", "bool": "true or false", "list": "a list",
             "dict": "a table", "model": "a table", "none": "none"}  # fmt: skip
    return kinds.get(kind.partition("_")[0], str(error["msg"])[:1].lower() + str(error["msg"])[1:])


def _format_number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _find_place(error: Any, model: type[BaseModel]) -> tuple[int | str, ...]:
    """Return the path of a value, without the names that pydantic gives to the members of a union."""
    place: tuple[int | str, ...] = ()
    for step in error["loc"]:
        if isinstance(step, int) or error["type"] == "extra_forbidden" or step in _list_fields_at(model, place):
            place = (*place, step)
    return place


def _list_fields_at(model: type[BaseModel], place: tuple[int | str, ...]) -> list[str]:
    """Return the names that are known at a place of nested models."""
    for step in place:
        if isinstance(step, int):
            continue
        annotation = model.model_fields[step].annotation if step in model.model_fields else None
        inner = [a for a in _list_members(annotation) if hasattr(a, "model_fields")]
        if not inner:
            return []
        model = inner[0]
    return list(model.model_fields)


def _list_members(annotation: Any) -> list[Any]:
    return [annotation, *(m for a in get_args(annotation) for m in _list_members(a))]
