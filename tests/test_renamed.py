"""Configurations with names of earlier versions are still read, and mean the same."""

import json
from pathlib import Path

import pytest

from steppe.config import rename_old, resolve
from steppe.engine.build import build_algorithm
from steppe.parts.distillation import Distillation
from steppe.parts.proximal_ascent import ProximalAblation, ProximalAscent
from steppe.parts.sam import SAM
from steppe.reproduce import recipes, rows

RESULTS = Path(__file__).parent.parent / "results"
# What version 0.1.0 made of each name, written down from its catalogue.
MEANT = {
    "fedsol_a0": (),
    "fedsol_a1": (ProximalAscent(2.0, Distillation(), radius="fixed"),),
    "fedsol_a2": (ProximalAblation(2.0, Distillation(), radius="fixed", kind="a2"),),
    "fedsol_a3": (Distillation(), ProximalAscent(2.0, Distillation(), radius="fixed")),
    "fedsol_a4": (Distillation(), SAM(2.0)),
    "fedsol_a5": (Distillation(),),
    "fedsol_a6": (ProximalAblation(2.0, Distillation(), radius="fixed", kind="a6"),),
}


@pytest.mark.parametrize("name", MEANT)
def test_an_old_name_means_what_it_meant(name):
    config = resolve({"algorithm": name, "settings": {"rho": 2.0}})
    assert config.algorithm == "fedsol_ablation"
    assert build_algorithm(config).parts[:-1] == MEANT[name]


def test_an_old_setting_of_a_part():
    config = resolve({"add": ["swa:start=0.5,cycle=2", "man"]})
    assert config.add == ["swa:start_at=0.5,cycle=2", "man"]
    assert next(p for p in build_algorithm(config).parts if p.name == "swa").start_at == 0.5


def test_todays_names_stay_as_they_are():
    values = {"algorithm": "fedsol_ablation", "settings": {"variant": "a2"}, "add": ["swa:start_at=0.5"]}
    assert rename_old(values) == values


def test_old_rows_answer_the_cells_of_their_table():
    path = RESULTS / "fedsol-table6.jsonl"
    old = [json.loads(line) for line in path.read_text().splitlines()]
    names = {row["config"]["algorithm"] for row in old}
    assert names & set(MEANT), "the file was rewritten: this test shows nothing any more"
    cells = {c.id: c.hash for c in recipes.load_table("fedsol-table6").cells}
    for row in rows.read_rows(path):
        assert row["recipe"] == cells[row["cell"]], row["cell"]
