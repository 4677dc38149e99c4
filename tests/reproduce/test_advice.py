"""`steppe advise`: the best within limits, where it was compared, and what is not known."""

import json
import re
from dataclasses import replace

import pytest

from steppe.cli.advise import format_number
from steppe.reproduce.advice import Wish, advise, describe_evidence, is_dominated, is_level
from steppe.reproduce.choose_page import QUESTIONS, _cell, list_commands
from steppe.reproduce.intervals import Interval
from steppe.reproduce.league import list_arms
from steppe.reproduce.method_results import Evidence, Setting, collect_evidence, spell_title
from tests.reproduce.test_league import row_of, tuned

HERE = Setting("league", "cifar10", "cnn", "lda(0.1)", 100, 10, 200)
THERE = Setting("survey", "cifar10", "cnn", "sharding(2)", 1000, 10, 200)


def method(title, values, setting=HERE, **costs):
    costs = {"bytes_x": 1.0, "flops_x": 1.0, "kept": 0.0} | costs
    return Evidence(setting, title, title.lower(), tuple(enumerate(values, 1)), None, **costs)


SOME = [
    method("A", (60.0, 62.0, 61.0)),
    method("B", (64.0, 66.1, 65.0), kept=1.0),
    method("C", (66.0, 68.0, 67.1), flops_x=2.35),
    method("D", (59.9, 62.2, 60.8), bytes_x=2.0),
    method("A", (50.0,), THERE),
    method("B", (51.0,), THERE, kept=1.0),
]


def test_limits_and_what_is_level():
    told = advise(Wish(), SOME)
    assert (told["source"], told["advice"]["method"], told["advice"]["seeds"]) == ("league", "C", 3)
    assert told["dominated"] == []
    assert is_dominated(method("E", (50.0, 52.0, 51.0)), SOME[:4])
    told = advise(Wish(max_flops=1.4), SOME)
    assert (told["advice"]["method"], [e["method"] for e in told["others"]]) == ("B", ["A", "D"])
    assert [e["method"] for e in told["beyond_limits"]] == ["C"]
    told = advise(Wish(max_flops=1.4, stateless=True), SOME)
    assert (told["advice"]["method"], [e["method"] for e in told["level"]]) == ("A", ["D"])
    assert is_level(SOME[0], SOME[3])
    assert not is_level(SOME[1], SOME[0])
    assert not is_level(SOME[1], method("F", (40.0, 60.0)))  # of two runs, whatever the width of their interval


def test_the_nearest_setting_answers_and_says_what_it_is_not():
    told = advise(Wish(clients=1000, per_round=20), SOME)
    assert (told["source"], told["advice"]["method"]) == ("survey", "B")
    assert [e["method"] for e in told["level"]] == ["A"]  # one seed, one point
    gaps = " ".join(told["gaps"])
    assert "participation of 2 %: the nearest has 1 %" in gaps
    assert "One seed" in gaps
    assert advise(Wish(partition="lda(0.3)"), SOME)["source"] == "league"
    assert "partition lda(0.3): the nearest is lda(0.1)" in advise(Wish(partition="lda(0.3)"), SOME)["gaps"][0]
    nearly = replace(HERE, partition="lda(0.5)")
    alike = advise(Wish(partition="iid"), [*SOME[:2], method("A", (70.0,), nearly), method("B", (71.0,), nearly)])
    assert "lda(0.5)" in alike["setting"]
    none = advise(Wish(max_flops=0.5), SOME)
    assert (none["advice"], none["gaps"]) == (None, ["No two methods within these limits were compared anywhere."])


def test_a_gain_is_told_in_words():
    told = [describe_evidence(replace(SOME[1], gain=gain)) for gain in (Interval(3.5, None, 1), Interval(-2, 0.25, 3))]
    assert [format_number(e) for e in told] == [
        "65.03 ± 2.61 %, 3.50 points above FedAvg", "65.03 ± 2.61 %, 2.00 ± 0.25 points below FedAvg",
    ]  # fmt: skip
    assert [_cell(e, "over_fedavg", "over_fedavg_half_width") for e in told] == ["3.50 (3)", "-2.00 ± 0.25 (3)"]
    both = describe_evidence(replace(SOME[1], gain=Interval(9, 1, 3), gain_over_mean=Interval(3.25, 0.5, 3)))
    assert format_number(both).endswith("9.00 ± 1.00 points above FedAvg, 3.25 ± 0.50 points above FedAvg + EMA")


def test_states_in_rare_rounds_and_what_was_not_compared():
    rare = " ".join(advise(Wish(clients=100_000, per_round=100), SOME[:2])["gaps"])
    assert "B keeps a state on clients" in rare
    assert "--stateless" in rare
    assert "keeps a state" not in " ".join(advise(Wish(clients=100, per_round=20), SOME[:2])["gaps"])
    assert "keeps a state" not in " ".join(advise(Wish(clients=1000, per_round=1, stateless=True), SOME)["gaps"])
    strong = [method("X + EMA", (67.0,), flops_x=2.0)]
    assert "X + EMA (67.00 % of held-out data" in " ".join(advise(Wish(), SOME, strong)["gaps"])
    assert advise(Wish(max_flops=1.5), SOME, strong)["gaps"] == []
    assert advise(Wish(clients=1000), SOME, strong)["gaps"] == [
        "One seed and one draw of the partition: differences of a point or two may be chance.",
        "FedAvg has a local momentum of 0.9 in the survey: in the league it is far better with 0.",
    ]


def test_every_answer_of_the_page_has_a_command():
    told = [advise(wish, SOME)["advice"] for wish in QUESTIONS.values()]
    assert set(list_commands(SOME)) == {best["run"] for best in told if best}
    assert list_commands(SOME)["steppe run c"] == "C (league)"
    assert list_commands([]) == {}
    assert [spell_title(t) for t in ("Scaffold", "FedDC+MAN", "FedSoL")] == ["SCAFFOLD", "FedDC + MAN", "FedSoL"]


def test_rows_become_evidence():
    """Of the chosen candidate on blocks, with and without EMA; tuning is no evidence."""
    arm = next(a for a in list_arms() if a.id == "feddyn")
    rows, _ = tuned(arm, 1)
    assert collect_evidence(rows) == []
    rows += [row_of(arm, arm.choose(rows), block, 0.6, "lda-0.1") for block in (1, 2)]
    plain, mean = collect_evidence(rows)
    assert (plain.title, mean.title) == ("FedDyn", "FedDyn + EMA")
    assert dict(plain.by_seed) == pytest.approx({1: 55.0, 2: 55.0})
    assert (mean.command, mean.kept, mean.flops_x) == ("feddyn:alpha=0.1+ema:keep=0.9", 1.0, 1.0)


@pytest.mark.slow
def test_the_command(steppe):
    said = steppe("advise", "--clients", "1000", "--per-round", "10", "--stateless", "--max-flops", "1.4", "--json")
    told = json.loads(said.out)
    assert told["advice"]["kept"] == 0
    assert told["advice"]["flops"] <= 1.4
    assert any("1,000 clients" in gap for gap in told["gaps"])
    said = steppe("advise").out
    assert "evidence:" in said
    assert re.search(r"\d % *,? \d+\.\d\d (± \d+\.\d\d )?points above FedAvg", said), said
    assert "there are only 5 clients" in steppe("advise", "--clients", "5", "--per-round", "6").err
