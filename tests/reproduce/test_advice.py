"""`steppe advise`: the best within limits, where it was compared, and what is not known."""

import json
import re
from dataclasses import replace
from itertools import combinations
from statistics import variance

import pytest

from steppe.cli.advise import format_number
from steppe.reproduce.advice import CAVEATS, Wish, advise, describe_evidence, is_dominated, is_level, rank_methods
from steppe.reproduce.choose_page import QUESTIONS, format_distance, format_gain, list_commands, make_answers
from steppe.reproduce.intervals import CHANCE, Interval
from steppe.reproduce.league import list_arms
from steppe.reproduce.method_results import Evidence, Setting, collect_evidence, spell_title
from steppe.reproduce.rows import find_ours, read_folders
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
    few = advise(Wish(partition="pathological(3)", clients=1000), SOME)  # classes per client, as in sharding
    assert few["source"] == "survey"
    assert few["gaps"][0].endswith("has the partition pathological(3): the nearest is sharding(2).")
    assert advise(Wish(partition="dirichlet(0.1, 10)"), SOME)["source"] == "league"
    assert "uses shakespeare: the nearest uses cifar10, and all use images" in " ".join(
        advise(Wish(data="shakespeare"), SOME)["gaps"]
    )
    assert advise(Wish(partition="natural"), SOME)["gaps"][0].endswith(
        "has the partition natural, or one that can be compared with it: this one has lda(0.1)."
    )
    assert advise(Wish(per_round=200), SOME)["gaps"][0] == (
        "No comparison within these limits has 200 clients per round: the nearest has 10 of 100."
    )
    none = advise(Wish(max_flops=0.5), SOME)
    assert (none["advice"], none["gaps"]) == (None, ["No two methods within these limits were compared anywhere."])


def test_a_gain_is_told_in_words():
    told = [describe_evidence(replace(SOME[1], gain=gain)) for gain in (Interval(3.5, None, 1), Interval(-2, 0.25, 3))]
    assert [format_number(e) for e in told] == [
        "65.03 ± 2.61 %, 3.50 points above FedAvg", "65.03 ± 2.61 %, 2.00 ± 0.25 points below FedAvg",
    ]  # fmt: skip
    # With the number of runs that both have, not that of the method's own.
    assert [format_gain(e, "over_fedavg") for e in told] == ["3.50 (1)", "-2.00 ± 0.25 (3)"]
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
    assert advise(Wish(max_flops=1.5), SOME, strong)["gaps"] == [CAVEATS["league"]]
    assert advise(Wish(clients=1000), SOME, strong)["gaps"] == [
        "One seed and one draw of the partition: differences of up to 3 points may be chance.",
        "FedAvg has a local momentum of 0.9 in the survey: in the league FedAvg is far better with 0.",
    ]


def test_what_is_tuned_but_was_not_run_there_is_named():
    tuned = [method(t, (), kept=k) for t, k in (("A", 0.0), ("Y + EMA", 0.0), ("Z + EMA", 1.0))]
    assert advise(Wish(), SOME, (), tuned)["gaps"][-1] == "Tuned, but not run there: Y + EMA, Z + EMA."
    assert advise(Wish(stateless=True), SOME, (), tuned)["gaps"][-1] == "Tuned, but not run there: Y + EMA."
    assert not any("Tuned" in gap for gap in advise(Wish(clients=1000), SOME, (), tuned)["gaps"])  # not the league
    strong = [method("Y + EMA", (67.0,))]
    told = " ".join(advise(Wish(stateless=True), SOME, strong, tuned)["gaps"])
    assert told.count("Y + EMA") == 1


def test_a_level_method_has_its_distance_and_an_open_question_is_told():
    told = advise(Wish(max_flops=1.4, stateless=True), [replace(SOME[0], remark="Open."), *SOME[1:]])
    (level,) = told["level"]
    assert (level["method"], level["below"], level["below_half_width"]) == ("D", 0.03, 0.52)
    assert format_distance(level) == "0.03 ± 0.52 below"
    assert "Open." in told["gaps"]
    (takyr,) = {e.remark for e in collect_evidence(read_folders([find_ours()])) if e.title == "Takyr"}
    assert takyr.startswith("Whether Takyr needs its ")
    assert "MAN" in takyr
    # Two blocks: 69.716 and 68.193 without MAN, 68.111 and 67.366 with it.
    assert "without MAN it has 1.22 ± 4.94 (2) points more on CIFAR-10, LDA(0.1)" in takyr


def test_blocks_that_a_method_lacks_do_not_make_it_the_best():
    """A has two points more than B wherever both ran, and B has no number of the hard first block."""
    a, b = method("A", (50.0, 62.0, 64.0, 60.0)), method("B", (0.0, 60.0, 62.0, 58.0))
    b = replace(b, by_seed=b.by_seed[1:])
    assert b.accuracy.mean > a.accuracy.mean
    assert [e.title for e in rank_methods([b, a])] == ["A", "B"]
    assert advise(Wish(), [b, a])["advice"]["method"] == "A"
    once = replace(method("C", (0.0, 65.0)), by_seed=((2, 65.0),))  # three points more, once
    told = advise(Wish(), [once, a, method("D", (49.0, 61.0, 63.5, 58.0))])
    assert told["advice"]["method"] == "A"
    assert (told["level"][0]["method"], told["level"][0]["below"]) == ("C", -3.0)
    assert format_distance(told["level"][0]) == "3.00 above"
    assert [e.title for e in rank_methods([method("C", (65.0,)), method("F", (60.0, 61.0, 62.0))])] == ["C", "F"]


def test_what_is_beyond_the_limits_is_better_only_if_the_rows_show_it():
    wish = Wish(max_flops=1.4)
    cheap, costly = method("A", (60.0, 61.0, 62.0)), method("B", (60.5, 60.9, 62.4), flops_x=2.0)  # +0.5, -0.1, +0.4
    assert costly.accuracy.mean > cheap.accuracy.mean
    assert advise(wish, [cheap, method("D", (50.0, 51.0, 52.0)), costly])["beyond_limits"] == []
    far = replace(costly, by_seed=((1, 63.0), (2, 64.2), (3, 65.1)))  # +3, +3.2, +3.1
    (told,) = advise(wish, [cheap, method("D", (50.0, 51.0, 52.0)), far])["beyond_limits"]
    assert told["method"] == "B"


def test_methods_without_a_common_run_are_compared_by_their_means():
    other = replace(HERE, partition="sharding(2)")
    some = [method("A", (60.0,)), replace(method("B", (59.0,)), by_seed=((2, 59.0),)),
            method("A", (60.0,), other), replace(method("B", (70.0,), other), by_seed=((2, 70.0),))]  # fmt: skip
    told = advise(Wish(partition="lda(0.1)"), some)
    assert "cifar10, sharding(2): B by 10.00 (0)." in " ".join(told["gaps"])
    assert (told["level"][0]["below"], told["level"][0]["below_seeds"]) == (1.0, 0)
    table, _ = make_answers(some, [])
    assert any("A (10.00 below)" in row or "B (1.00 below)" in row for row in table.rows)


def test_an_answer_says_where_else_it_is_behind():
    other, third = replace(HERE, partition="sharding(2)"), replace(HERE, partition="lda(0.5)")
    some = [method("A", (60.0, 61.0, 62.0)), method("B", (55.0, 56.0, 57.5)),
            method("A", (60.0, 61.0, 62.0), other), method("B", (63.0, 64.0, 66.5), other, kept=1.0),  # +3, +3, +4.5
            method("A", (60.0, 61.0, 62.0), third), method("B", (60.0, 61.5, 61.8), third)]  # fmt: skip
    told = " ".join(advise(Wish(partition="lda(0.1)"), some)["gaps"])
    assert "Elsewhere A is behind" in told
    assert "cifar10, sharding(2): B by 3.50 ± 2.15 (3)." in told  # 4.3027 · 0.8660 / √3
    assert "lda(0.5)" not in told
    assert "Elsewhere" not in " ".join(advise(Wish(partition="lda(0.1)", stateless=True), some)["gaps"])
    takyr = advise(Wish(), collect_evidence(read_folders([find_ours()])))
    assert takyr["advice"]["method"] == "Takyr"
    assert any("Elsewhere Takyr is behind" in gap and "sharding(2): FedGMT + EMA" in gap for gap in takyr["gaps"])


def test_chance_is_two_deviations_of_the_differences_between_methods():
    """From the committed blocks of the league: by how much the difference of two methods varies between blocks."""
    runs = {}
    for row in read_folders([find_ours()]):
        if row["table"] == "league" and row["cell"].startswith("lda-0.1/") and "failed" not in row:
            runs.setdefault(row["cell"], {})[row["seed"]] = 100 * sum(row["accuracy"][-10:]) / 10
    several = [of for of in runs.values() if len(of) >= 3]
    variances = [variance([a[b] - z[b] for b in a if b in z]) for a, z in combinations(several, 2)]
    assert len(variances) >= 10
    assert CHANCE - 0.5 < 2 * (sum(variances) / len(variances)) ** 0.5 <= CHANCE


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
    assert (mean.command, mean.kept, mean.flops_x) == (
        "feddyn:alpha=0.1+ema:keep=0.9 --set lr=0.01 --set momentum=0.9", 1.0, 1.0)  # fmt: skip


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
    assert "there is no such folder" in steppe("advise", "--results", "nowhere").err
    assert "there are only 5 clients" in steppe("advise", "--clients", "5", "--per-round", "6").err
