"""Keys: their roles, their ranges, their names elsewhere, and the files that hold them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import steppe
from steppe.config import Config, list_keys, resolve
from steppe.core.errors import SettingError
from steppe.presets import ELSEWHERE, RECIPES
from steppe.read_config import nest_settings, read_config_file

ROLES = ("method", "recipe", "seed", "evaluation", "machine", "tracking")


def test_every_key_has_one_role_and_a_description_of_its_own() -> None:
    assert sorted(name for role in ROLES for name in list_keys(role)) == sorted(Config.model_fields)  # type: ignore[arg-type]
    for name, field in Config.model_fields.items():
        about = field.description or ""
        assert about[:1].isupper(), name
        assert len(about) > 12, name


def test_what_is_compared_and_where_it_runs_is_no_protocol() -> None:
    assert list_keys("tracking") == {"track"}
    assert list_keys("method") == {"algorithm", "settings", "add"}
    assert {"device", "workers", "store", "data_folder", "checkpoint_every"} <= list_keys("machine")
    assert {name for recipe in RECIPES.values() for name in recipe} <= list_keys("recipe")


@pytest.mark.parametrize("name", [n for n in Config.model_fields if n not in ("settings", "compile")])
@pytest.mark.parametrize(
    "value", [math.inf, -math.inf, math.nan, 2**63, 10**400, -1, True, {}, {"a": 1}, [[]], b"x"], ids=str
)
def test_what_is_sane_for_no_key(name: str, value: Any) -> None:
    if (name, value) == ("refuse_above", 2**63):
        pytest.skip("a norm may be as large as a float")
    with pytest.raises(SettingError, match=rf"^the settings: {name}\b"):
        resolve({name: value})


@pytest.mark.parametrize("name", [n for n, f in Config.model_fields.items() if f.annotation is str])
def test_texts_are_texts(name: str) -> None:
    for value in (3, ["a"], *([] if name == "augmentation" else [None]), "a\0b"):  # None: no augmentation
        with pytest.raises(SettingError, match=rf"^the settings: {name} is"):
            resolve({name: value})


def test_usual_names_lead_to_ours() -> None:
    for name, ours in ELSEWHERE.items():
        assert name not in Config.model_fields
        assert ours.partition(" ")[0] in Config.model_fields
        with pytest.raises(SettingError, match=f"there is no key '{name}'; did you mean {ours.partition(' ')[0]}"):
            resolve({name: 1})


def test_python_is_told_the_keyword() -> None:
    for options, told in [
        ({"rho": -1}, r"^rho=-1: rho of algorithm 'fedsam' is -1"),
        ({"lr": -1}, r"^lr=-1: lr is -1, but must be above 0"),
        ({"learning_rate": 0.1}, r"^learning_rate=0.1: there is no key 'learning_rate'; did you mean lr\?"),
        ({"per_round": 30}, r"^per_round=30: per_round is 30, but there are only 20 clients"),
    ]:
        with pytest.raises(SettingError, match=told):
            steppe.run("fedsam", **options)


def test_settings_may_stand_beside_keys() -> None:
    assert nest_settings({"algorithm": "fedsam", "rho": 0.3}) == {"algorithm": "fedsam", "settings": {"rho": 0.3}}
    found = nest_settings({"algorithm": "fedsam", "settings.rho": 1, "settings": {"eps": 0}})
    assert found == {"algorithm": "fedsam", "settings": {"rho": 1, "eps": 0}}
    with pytest.raises(SettingError, match="there is no key 'rhoo'; did you mean 'rho'"):
        nest_settings({"algorithm": "fedsam", "rhoo": 0.3})
    with pytest.raises(SettingError, match="there is no algorithm 'fedsamm'"):
        nest_settings({"algorithm": "fedsamm", "rho": 0.3})


def test_a_configuration_is_read_back(tmp_path: Path) -> None:
    config = resolve({"algorithm": "fedsam", "settings": {"rho": 0.3}, "recipe": "fedsmoo", "data": "cifar10"})
    (tmp_path / "config.json").write_text(json.dumps(config.model_dump(mode="json")))
    assert resolve(read_config_file(tmp_path / "config.json")) == config


def test_no_augmentation_can_be_asked_for_by_its_name() -> None:
    """A command line reads the word none as no value."""
    for value in (None, "none"):
        assert resolve({"augmentation": value, "data": "cifar10", "recipe": "fedsol"}).augmentation == "none"


def test_few_clients_are_all_trained_in_every_round() -> None:
    assert resolve({"clients": 3}).per_round == 3
    assert resolve({"clients": 3, "recipe": "fedsol"}).per_round == 3
    assert resolve({"clients": 3, "per_round": 2}).per_round == 2
    with pytest.raises(SettingError, match="there are only 3 clients"):
        resolve({"clients": 3, "per_round": 5})
