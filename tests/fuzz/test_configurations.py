"""Every configuration is a result or a SteppeError with a sentence, from Python and from files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import steppe
from steppe.cli import arguments
from steppe.config import Config, resolve
from tests.fuzz.inputs import TEXTS, WILD, configurations, fuzz, is_sentence, within

pytestmark = pytest.mark.slow
SMALL: dict[str, Any] = {"model": "mlp", "clients": 4, "per_round": 2, "rounds": 1, "max_steps": 1, "partition": "iid",
                         "workers": 0, "algorithm": "fedavg"}  # fmt: skip


class Enough(KeyboardInterrupt):
    """One round is enough."""


def enough(record: Any) -> None:
    raise Enough


@fuzz()
@given(configurations())
def test_any_values_are_resolved_or_refused(values: dict[str, Any]) -> None:
    try:
        with within(20):
            assert isinstance(resolve(values), Config)
    except steppe.SteppeError as error:
        is_sentence(error)


@fuzz(0.5)
@given(values=configurations())
def test_any_run_plays_a_round_or_is_refused(values: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    """What is legal is run for one round; a run that diverges says so."""
    out = tmp_path_factory.getbasetemp() / "fuzzed"
    shutil.rmtree(out, ignore_errors=True)
    options = {**SMALL, **values}
    algorithm, model, data = options.pop("algorithm"), options.pop("model"), options.pop("data", "digits")
    data = data if isinstance(data, str) else "digits"  # objects are not settings
    if isinstance(options["workers"], int) and options["workers"] > 1:
        options["workers"] = 0  # legal, and not what is tried here
    try:
        with within(120):
            steppe.run(algorithm, model, data, out=out, progress=False, watch=enough, **options)
    except Enough:
        pass
    except steppe.SteppeError as error:
        is_sentence(error)


@pytest.mark.parametrize("key", Config.model_fields)
def test_a_number_that_python_does_not_print(key: str) -> None:
    with pytest.raises(steppe.SteppeError, match="about 5000 digits"):
        resolve({key: 10**5000})


TOML = st.one_of(
    st.lists(st.builds("{} = {}".format, st.sampled_from([*Config.model_fields, "rho", "'a b'", "[x"]),
                       st.one_of(TEXTS, WILD.map(ascii))), max_size=4).map("\n".join),
    st.text(max_size=50),
    st.sampled_from(["a = " + "[" * 3000, "clients = " + "9" * 6000, "[settings]\nrho = 1", "[[settings]]", "lr = {}",
                     "lr = 1979-05-27", "settings.rho.x = 1", 'add = ["man", 3]', "\ufeffclients = 3"]),
)  # fmt: skip
JSON = st.one_of(
    st.dictionaries(st.sampled_from([*Config.model_fields, "rho"]), WILD, max_size=4).map(
        lambda content: json.dumps(content, default=str, skipkeys=True)
    ),
    st.sampled_from(["[1]", "3", '"text"', "{", "[" * 100_000, "{}", '{"lr": NaN}', '{"clients": 1e999}', "null"]),
)


def read_as(name: str, content: bytes, folder: Path) -> None:
    path = folder / name
    path.write_bytes(content)
    try:
        with within(20):
            arguments.read_configuration(None, path, [], [], None)
    except steppe.SteppeError as error:
        is_sentence(error)


@fuzz()
@given(content=st.one_of(TOML.map(lambda text: text.encode(errors="replace")), st.binary(max_size=80)))
def test_any_toml_file(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    read_as("mine.toml", content, tmp_path_factory.getbasetemp())


@fuzz()
@given(content=st.one_of(JSON.map(lambda text: text.encode(errors="replace")), st.binary(max_size=80)))
def test_any_json_file(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    read_as("config.json", content, tmp_path_factory.getbasetemp())


@pytest.mark.parametrize("path", ["/", "/dev/zero", "/proc/self/mem", "lost.toml", "x" * 5000, "/dev/null/x"])
def test_what_is_no_file(path: str) -> None:
    with within(20), pytest.raises(steppe.SteppeError):
        arguments.read_configuration(None, Path(path), [], [], None)
