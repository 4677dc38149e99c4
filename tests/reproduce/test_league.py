"""The league: six candidates each, ours by held-out data, blocks in order, paired intervals."""

import functools
import json
import math
import subprocess
import tomllib
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import t as student
from scipy.stats import ttest_1samp
from tools.evidence_table import describe_league

import steppe
from steppe.cli.reproduce import _show_league
from steppe.data.partition import make
from steppe.engine.build import build_algorithm
from steppe.reproduce import factorial, league, league_outcome, league_page, league_runs, recipes, rows
from steppe.reproduce.costs import compare_costs
from steppe.reproduce.intervals import compare_blocks, estimate
from steppe.reproduce.league import Candidate
from steppe.reproduce.method_results import collect_evidence

SEED = recipes.read_table_file("league")["tuning"]["seed"]
MACHINE = {"device": "cpu", "data_folder": None}


def row_of(arm, candidate, seed, accuracy, column=None):
    cell = arm.cell(candidate, column and league.find_column(column))
    return {"recipe": cell.hash, "seed": seed, "running_mean_of_last_ten": accuracy,
            "mean_of_last_ten": accuracy - 0.05, "config": cell.config.model_dump(mode="json"),
            "seconds": {"total": 10.0}}  # fmt: skip


def tuned(arm, best, then=(0.5, 0.45), scores=None):
    """Rows of tuning in which the best candidate of the axis is the one at this place; and the two that follow."""
    values = arm.axis["values"]
    scores = scores or [*(0.6 if k == best else 0.5 - 0.1 * abs(k - best) for k in range(3)), 0.3]
    made = [row_of(arm, c, SEED, s) for c, s in zip([*map(Candidate, values), arm.middle(True)], scores, strict=True)]
    followed = []
    for score in then:
        (more,) = [c for c, s in arm.score_candidates(made).items() if s is None]
        followed.append(more)
        made.append(row_of(arm, more, SEED, score))
    return made, followed


def test_two_candidates_follow_so_that_what_is_chosen_lies_inside():
    arm = next(a for a in league.list_arms() if a.id == "feddyn")
    expected = {0: (0.01, 0.017), 2: (1.0, 0.55), 1: (0.055, 0.074)}
    for best, at in expected.items():
        found, followed = tuned(arm, best)
        assert followed == [Candidate(v) for v in at]
        assert arm.choose(found) == Candidate(arm.axis["values"][best])
        assert not arm.is_at_edge(arm.choose(found), found)
    found, followed = tuned(arm, 2, then=(0.7, 0.8))  # better and better outwards: the page says so
    assert followed == [Candidate(1.0), Candidate(3.3)]
    assert arm.is_at_edge(arm.choose(found), found)
    assert arm.choose(found[:-1]) is None
    # A seventh and an eighth follow outwards; the arm's blocks wait for them, and what was best before still counts.
    assert [c for c, s in arm.score_candidates(found).items() if s is None] == [Candidate(11.0)]
    jobs = league_runs.find_missing_runs(found, "paper", ["lda-0.1/feddyn"], MACHINE)
    assert [j.cells[0].row for j in jobs] == ["feddyn/alpha=11"]
    ended = [*found, row_of(arm, Candidate(11.0), SEED, 0.5)]
    assert len(arm.score_candidates(ended)) == 7
    assert not arm.is_at_edge(arm.choose(ended), ended)
    outwards = [*found, row_of(arm, Candidate(11.0), SEED, 0.81), row_of(arm, Candidate(37.0), SEED, 0.82)]
    assert [*arm.score_candidates(outwards).values()][-2:] == [0.81, 0.82]
    assert arm.is_at_edge(arm.choose(outwards), outwards)  # eight are the most
    # With momentum 0 the best is at an end of what was tried with momentum 0, whatever the axis was tried with.
    found, followed = tuned(arm, 1, scores=[0.3, 0.4, 0.2, 0.6])
    assert followed == [Candidate(0.055, True), Candidate(0.3, True)]
    assert not arm.is_at_edge(arm.choose(found), found)


def test_everybody_has_six_different_candidates_tuned_without_the_test_set():
    for arm in (a for a in league.list_arms() if not a.like):
        found, _ = tuned(arm, 1)
        configs = [arm.cell(c, None).config for c in arm.score_candidates(found)]
        assert len({recipes.hash_recipe(c) for c in configs}) == 6, arm.id
        for c in configs:
            assert (c.judged_on, c.validation, c.rounds, c.vary, c.running_mean) == ("validation", 0.1, 200, "all", 0.9)
    plain = {"scaffold", "fednsam"}  # published with plain SGD on the clients
    for arm in (a for a in league.list_arms() if a.id in plain):
        assert {arm.cell(c, None).config.momentum for c in arm.score_candidates([])} == {0.0}


def test_tuning_first_then_whole_blocks():
    arms = {a.id: a for a in league.list_arms()}
    first = [a for a in arms.values() if a.tier == 1]
    assert len(league_runs.find_missing_runs([], "paper", ["*"], MACHINE)) == 4 * sum(not a.like for a in arms.values())
    known = [r for a in first for r in tuned(a, 1, then=(0.65 if a.id == "curved-dual" else 0.5, 0.4))[0]]
    assert league.choose_ours(known).id == "curved-dual"
    assert league.choose_ours(known[:-1]) is None  # one of ours is not tuned
    jobs = league_runs.find_missing_runs(known, "paper", ["lda-0.1/*"], MACHINE)
    doubted = jobs[:6]  # the strongest doubt about ours comes first
    assert {j.cells[0].row.split("/")[0] for j in doubted} == {"factor-dual-curved-pull"}
    assert [j.config.seed for j in doubted] == [1, 2, 3, 4, 5, 6]
    jobs = jobs[6:]
    begin = [(j.config.seed, j.cells[0].row.split("/")[0]) for j in jobs[:10]]
    arms_of_a_block = ["fedavg", "feddyn", "fedsol", "fedgmt", "curved-dual"]
    assert begin == [(block, name) for block in (1, 2) for name in arms_of_a_block]
    assert all(j.config.judged_on == "test" and not j.config.validation for j in jobs[:30])
    assert [bool(j.config.measure) for j in jobs[:30]] == [True] * 15 + [False] * 15
    everything = league_runs.find_missing_runs(known, "paper", [], MACHINE)
    first_of = [next(i for i, j in enumerate(everything) if j.stage[0] == k) for k in range(6)]
    ids = ["/".join(everything[i].cells[0].id.split("/")[:2]) for i in first_of]
    assert ids == ["lda-0.1/factor-dual-curved-pull", "lda-0.1/fedavg", "tuning/fednsam", "sharding-2/fedavg",
                   "cifar100/fedavg", "lda-0.1/head-dual"]  # fmt: skip
    with pytest.raises(steppe.SteppeError, match=r"lda-0\.1/feddyn"):
        league_runs.find_missing_runs([], "paper", ["lda-0.1/fedyn"], MACHINE)


def test_patterns_match_what_the_dry_run_prints():
    known = rows.read_folders([rows.find_ours()])

    def find(*globs, of=known):
        return [j.label for j in league_runs.find_missing_runs(of, "paper", list(globs), MACHINE)]

    printed = [j.cells[0].id for j in league_runs.find_missing_runs(known, "paper", [], MACHINE)]
    assert {"lda-0.1/factor-dual-curved-pull/like curved-dual", "tuning/scaffold/lr=0.05"} < {*printed}
    for name in ("lda-0.1/factor-dual-curved-pull/like curved-dual", "tuning/scaffold/lr=0.05"):
        found = find(name)
        assert found, name
        assert all(f" {name}, seed " in label for label in found)
    assert find("lda-0.1/factor-dual-curved-pull/*") == find("lda-0.1/factor-dual-curved-pull")
    assert find("lda-0.1/factor-dual-curved-pull/*", of=[]) == []  # what it is like is not tuned yet
    assert find("lda-0.1/scaffold/*") == find("lda-0.1/scaffold") == find("tuning/scaffold/*")  # tuned first
    assert find("lda-0.1/fedsol/rho=0.25,*") == find("tuning/fedsol/rho=0.12,*")  # it may not stay the choice
    # A candidate that was not chosen is not run in a column, and does not stand for the one that was.
    assert find("sharding-2/feddyn/alpha=0.03") == []
    for name in ("lda-0.1/factor-dual-curved-pull/like fedavg", "tuning/factor-dual/*"):
        with pytest.raises(steppe.SteppeError, match="no cell matches"):
            find(name)


def test_seconds_are_those_of_gpus_alone_and_the_page_says_which():
    known = rows.read_folders([rows.find_ours()])
    assert "; seconds are of one H200, shared.\n" in league_page.render_markdown(known)

    def change(row):
        if row["table"] != "league" or not row["cell"].startswith("lda-0.1/"):
            return row
        on = {"hardware": "CPU (x86_64), 8 CPU cores", "peak_gpu_mib": None}
        return row | (on if row["seed"] == 1 else {"hardware": "one NVIDIA A100, 8 CPU cores", "processes": 1})

    page = league_page.render_markdown([*map(change, known)])
    assert "seconds are of one A100 or one H200, shared; runs on a CPU have none.\n" in page
    assert "both on the same kind of GPU: " in page
    ours = next(f for f in league_runs.find_standings([*map(change, known)]) if f["arm"] == "curved-dual")
    assert list(ours["seconds"]) == [2, 3, 4, 5, 6]
    alone = league_page.render_markdown([r | {"peak_gpu_mib": None} for r in known])
    assert "traced; runs on a CPU have no seconds.\n" in alone
    assert "seconds" not in league_page.render_markdown([])


def test_blocks_in_which_training_broke_down_are_told_where_wins_are():
    known = rows.read_folders([rows.find_ours()])

    def stop(row):
        if not row["cell"].startswith("lda-0.1/curved-dual/") or row["seed"] > 3:
            return row
        lost = ("running_mean_of_last_ten", "mean_of_last_ten", "measures")
        return {k: v for k, v in row.items() if k not in lost} | {"failed": "not finite"}

    broken = [*map(stop, known)]
    found = next(f for f in league_runs.find_standings(broken) if f["arm"] == "curved-dual")
    assert (found["failed"], [*found["mean"]], [*found["seconds"]]) == ([1, 2, 3], [4, 5, 6], [4, 5, 6])
    told = league_outcome.write_sections(broken)["Outcome"]
    assert ("Training broke down in blocks: Takyr (dual + curved pull + MAN) on CIFAR-10, LDA(0.1) (3 of 6 blocks). "
            "Means and differences leave these out, so they say too much for these arms.") in told  # fmt: skip
    assert not any("broke down in blocks" in s for s in league_outcome.write_outcome(known))


def test_the_parts_of_ours_are_arms_with_what_was_chosen_for_the_whole():
    arms = {a.id: a for a in league.list_arms()}
    whole = arms["curved-dual"]
    known, _ = tuned(whole, 2)
    jobs = league_runs.find_missing_runs(known, "paper", ["lda-0.1/factor-*", "lda-0.1/head-dual"], MACHINE)
    assert [j.config.seed for j in jobs] == [*range(1, 7), *(block for block in (1, 2, 3) for _ in range(7))]
    dual, man = "dynamic_regularisation:alpha=0.1,prox=none", "man:weight=0.15"
    found = {j.cells[0].row.split("/")[0]: j.config for j in jobs}
    assert {name: (c.algorithm, c.add) for name, c in found.items()} == {
        "factor-none": ("fedavg", []), "factor-dual": ("fedavg", [dual]), "factor-curved-pull": ("fedsol", []),
        "factor-man": ("fedavg", [man]), "factor-dual-curved-pull": ("fedsol", [dual]),
        "factor-dual-man": ("fedavg", [man, dual]), "factor-curved-pull-man": ("fedsol", [man]),
        "head-dual": ("fedsol", [man, f"{dual},last=5130"]),
    }  # fmt: skip
    assert all(
        c.settings == ({"proximal": "l2", "rho": 1.0} if c.algorithm == "fedsol" else {}) for c in found.values()
    )
    # A model of the outcome: what the parts add by themselves, and two of them together.
    adds = {"dual": 3.0, "curved-pull": 5.0, "MAN": 1.0}
    for on, name in league.list_factors().items():
        for block in (1, 2):
            level = 50 + sum(adds[f] for f in on) + (2.0 if {"dual", "MAN"} <= on else 0.0) + 0.1 * block * len(on)
            known.append(row_of(arms[name], arms[name].choose(known), block, level / 100, "lda-0.1"))
    table = factorial.make_table(league_runs.find_standings(known), league.find_column("lda-0.1"))
    assert [row[0] for row in table.rows] == [*adds, "EMA"]
    means = {row[0]: [float(cell.split()[0]) for cell in row[1:]] for row in table.rows}
    assert means == {"dual": [3.15, 4.15, 5.15], "curved-pull": [5.15] * 3, "MAN": [1.15, 2.15, 3.15], "EMA": [5.0] * 3}
    assert all(cell.endswith("(2)") for row in table.rows for cell in row[1:])
    incomplete = [r for r in known if not (r["seed"] == 2 and not r["config"]["add"])]
    assert (
        factorial.make_table(league_runs.find_standings(incomplete), league.find_column("lda-0.1")).rows[0][1]
        == "3.10 (1)"
    )


def test_the_entry_of_the_catalogue_is_the_arm_that_won():
    """Its defaults are what the league's committed rows chose, and its evidence is that of the arm."""
    known = rows.read_folders([rows.find_ours()])
    (arm,) = [a for a in league.list_arms() if "entry" in a.content]
    assert league.choose_ours(known).id == arm.id
    config = arm.cell(arm.choose(known), league.find_column("lda-0.1")).config
    with_mean = config.model_copy(update={"add": [*config.add, f"ema:keep={config.running_mean}"]})
    plain = config.model_copy(update={"algorithm": arm.content["entry"], "settings": {}, "add": []})
    ours, theirs = (
        sorted(build_algorithm(c).parts, key=lambda p: p.name == "ema")  # whose place means nothing
        for c in (plain, with_mean)
    )
    assert ours == theirs
    costs = compare_costs(plain)
    assert (costs["bytes_x"], costs["flops_x"]) == (1.0, 1.0)
    found = [e for e in collect_evidence(known) if e.title == "Takyr"]
    assert {e.setting.partition for e in found} >= {"lda(0.1)", "sharding(2)"}
    assert {e.command for e in found} == {"takyr --set lr=0.01 --set momentum=0.9"}  # with which it was tuned


def test_every_partition_can_be_drawn():
    """Of as many samples and classes as the data set has: a minimum per client may be out of reach."""
    arm = league.list_arms()[0]
    for column in arm.columns:
        config = arm.cell(arm.middle(False), column).config
        samples, classes = (
            60_000 if config.data == "fashion-mnist" else 50_000,
            100 if config.data == "cifar100" else 10,
        )
        for block in range(1, column["blocks"] + 1):
            drawn = make(config.partition, np.arange(samples) % classes, config.clients, block)
            assert len(drawn.clients) == config.clients, column["id"]


def test_the_contrasts_were_named_before_every_run():
    """The commit that named them is in the history of the commit of every row, or it did not have the row."""
    named = league.read_league()["named_in"]
    root = Path(__file__).parents[2]
    git = functools.partial(subprocess.run, cwd=root, capture_output=True, text=True)
    if not (root / ".git").exists() or git(["git", "cat-file", "-e", named]).returncode:
        pytest.skip("the history is not here")
    shown = git(["git", "show", f"{named}:src/steppe/reproduce/tables/blocks.toml"]).stdout
    assert tomllib.loads(shown)["contrasts"] == league.read_league()["contrasts"]
    assert tomllib.loads(shown)["worth"] == league.read_league()["worth"]
    before = git(["git", "show", f"{named}:results/league.jsonl"]).stdout.splitlines()
    for line in (root / "results/league.jsonl").read_text().splitlines():
        commit = json.loads(line)["commit"]
        if git(["git", "cat-file", "-e", commit]).returncode:  # made on a branch whose commits were joined
            assert line not in before, commit
        else:
            assert git(["git", "merge-base", "--is-ancestor", named, commit]).returncode == 0, commit


def test_the_committed_rows_by_another_program():
    """Contrasts by SciPy from the file alone; tuning without the test set; one partition per block."""
    made = rows.read_rows(Path(__file__).parents[2] / "results/league.jsonl")
    runs, partitions = {}, {}
    for row in made:
        held_out = row["seed"] == SEED
        assert row["config"]["judged_on"] == ("validation" if held_out else "test")
        if held_out:
            assert row["accuracy"] == row["validation"]
            assert all(
                round(5000 * a, 6) % 1 == 0 for a in row["running_mean"]
            )  # of 5,000 samples: a test set has 10,000
            continue
        column, arm, candidate = row["cell"].split("/", 2)
        partitions.setdefault((column, row["seed"]), set()).add(row["partition"])
        runs.setdefault((column, arm, candidate), {})[row["seed"]] = 100 * sum(row["running_mean"][-10:]) / 10
    assert all(len(found) == 1 for found in partitions.values())
    known = rows.read_folders([rows.find_ours()])
    told, found, chances = league_outcome.write_outcome(known), {}, {}
    (chosen,) = {candidate for _, arm, candidate in runs if arm == "curved-dual"}
    for (column, arm, candidate), theirs in runs.items():
        if arm in league.read_league()["contrasts"]:
            ours = runs[column, "curved-dual", chosen]
            differences = [ours[b] - theirs[b] for b in ours if b in theirs]
            test = ttest_1samp(differences, 0)
            low, high = test.confidence_interval(0.95)
            found[column, arm, candidate] = (sum(differences) / len(differences), low, high, len(differences))
            chances[column, arm, candidate] = test.pvalue
    order = sorted(chances, key=chances.get)
    holm = {k: max(chances[j] * (len(order) - i) for i, j in enumerate(order[: n + 1])) for n, k in enumerate(order)}
    titles = {a.id: a.title for a in league.list_arms()}
    for (column, arm, candidate), (mean, low, high, count) in found.items():
        start = f"{league.find_column(column)['title']}: ours − ({titles[arm]} + EMA"
        result = f") = {mean:+.2f} points, interval {low:+.2f} to {high:+.2f}, {count} blocks, "
        lines = [s for s in told if s.startswith((start + result, f"{start}, {candidate}{result}"))]
        (line,) = lines  # what was run is not dropped, even if its setting is no longer chosen
        assert f"p = {chances[column, arm, candidate]:.3f}, " in line
        assert f"corrected = {min(1, holm[column, arm, candidate]):.3f}: " in line


def test_contrasts_are_paired_by_block():
    ours, theirs = {1: 60.0, 2: 50.0, 3: 55.5, 7: 90.0}, {1: 59.0, 2: 49.5, 3: 54.0, 8: 1.0}
    pair = compare_blocks(ours, theirs)
    half = student.ppf(0.975, 2) * 0.5 / math.sqrt(3)
    assert (pair.mean, pair.count) == (1.0, 3)
    assert pair.half == pytest.approx(half)
    assert estimate([]) is None
    assert estimate([1.0]).ends is None


def test_the_page_and_the_command_say_what_won_and_what_was_not_run(capsys):
    first = [a for a in league.list_arms() if a.tier == 1]
    known = [r for a in first for r in tuned(a, 1, then=(0.65 if a.id == "server-ascent" else 0.5, 0.4))[0]]
    level = {"fedavg": 0.50, "feddyn": 0.60, "fedsol": 0.64, "fedgmt": 0.62, "server-ascent": 0.62}
    for a in (a for a in first if a.id in level):
        for block in (1, 2, 3):
            wobble = 0.001 * block * (1 if a.id == "feddyn" else -1)
            known.append(row_of(a, a.choose(known), block, level[a.id] + wobble, "lda-0.1"))
    told = "\n".join(league_outcome.write_outcome(known))
    assert "Ours, chosen on held-out data, is dual + server ascent + MAN" in told
    assert (
        "ours − (FedDyn + EMA) = +1.60 points, interval +1.10 to +2.10, 3 blocks, p = 0.005, corrected = 0.005: "
        in told
    )
    assert "corrected = 0.005: ours wins." in told
    assert "ours − (FedSoL + EMA) = -2.00 points" in told
    assert "ours − (FedGMT + EMA) = +0.00 points, interval +0.00 to +0.00, 3 blocks: undecided" in told
    assert "For all 30 that are planned, Bonferroni's would leave none of them decided" in told
    (few,) = [s for s in league_outcome.write_outcome([r for r in known if r["seed"] != 3]) if "(FedDyn + EMA)" in s]
    assert few.endswith("too few blocks to decide.")
    page = league_page.render_markdown(known)
    assert "CIFAR-10, LDA(0.1): FedAvg (3 of 6)" in page
    assert "CIFAR-100, LDA(0.1): no arm." in page
    _show_league(known, "paper")
    assert "ours wins" in " ".join(capsys.readouterr().out.split())
    told = league_outcome.write_progress(known[:10])  # of the first arm, and of most of the second
    assert "Tuning is not complete: 10 of 42 runs" in told


def test_a_contrast_whose_choice_changes_is_not_dropped():
    """Three blocks of FedSoL, and then a seventh candidate that is better: the contrast is open, and still there."""
    first = [a for a in league.list_arms() if a.tier == 1]
    fedsol = next(a for a in first if a.id == "fedsol")
    known = [r for a in first if a is not fedsol for r in tuned(a, 1, then=(0.65 if a.ours else 0.5, 0.4))[0]]
    known += tuned(fedsol, 2, then=(0.7, 0.8))[0]  # better and better outwards
    ours, before = league.choose_ours(known), fedsol.choose(known)
    for arm, level in ((ours, 0.6), (fedsol, 0.5)):
        cell = f"lda-0.1/{arm.id}/{arm.name(arm.choose(known))}"
        known += [row_of(arm, arm.choose(known), b, level + b / 1000 * arm.ours, "lda-0.1") | {"cell": cell}
                  for b in (1, 2, 3)]  # fmt: skip
    (line,) = [s for s in league_outcome.write_outcome(known) if "FedSoL" in s and "ours −" in s]
    assert line.startswith("CIFAR-10, LDA(0.1): ours − (FedSoL + EMA) = +10.20 points")
    (further,) = [c for c, s in fedsol.score_candidates(known).items() if s is None]
    known.append(row_of(fedsol, further, SEED, 0.9))
    told = league_outcome.write_outcome(known)
    (line,) = [s for s in told if "FedSoL" in s and "ours −" in s]
    assert line.startswith(f"CIFAR-10, LDA(0.1): ours − (FedSoL + EMA, {fedsol.name(before)}) = +10.20 points")
    assert f"now {fedsol.name(further)}, at the edge of those tried, and the contrast is open until" in line
    assert any("for the 1 contrasts above that have a p-value" in s for s in told)
    assert not any("ahead of FedSoL" in s for s in told)
    page = league_page.render_markdown(known)
    assert f"| FedSoL, no longer chosen | {fedsol.name(before)} | 50.00 ± 0.00 (3) |" in page
    assert "; not FedAvg, FedDyn, FedSoL, FedGMT," in page  # not run with its present choice
    jobs = league_runs.find_missing_runs(known, "paper", ["lda-0.1/fedsol"], MACHINE)
    scores = fedsol.score_candidates(known)
    assert {j.cells[0].row for j in jobs} >= {f"fedsol/{fedsol.name(c)}" for c, s in scores.items()
                                              if s is None}  # fmt: skip


def test_what_speaks_against_ours_is_told():
    """The seconds of its runs beside its FLOPs, and a part without which the others do better."""
    gpu, other = "one H200, shared", "one A100"
    found = [{"column": "lda-0.1", "arm": "ours", "seconds": {1: 20.0, 2: 30.0, 4: 1.0, 5: 7.0},
              "devices": {1: gpu, 2: gpu, 4: gpu, 5: gpu}},
             {"column": "lda-0.1", "arm": "fedavg", "seconds": {1: 10.0, 2: 10.0, 3: 99.0, 5: 1.0},
              "devices": {1: gpu, 2: gpu, 3: gpu, 5: other}},  # a ratio between two GPUs says nothing
             {"column": "sharding-2", "arm": "ours", "seconds": {1: 20.0}, "devices": {1: gpu}}]  # fmt: skip
    times = league_outcome.compare_seconds(found, "lda-0.1", "ours")
    assert (times.mean, times.count) == (2.5, 2)
    assert league_outcome.compare_seconds(found, "sharding-2", "ours") is None
    known = rows.read_folders([rows.find_ours()])
    (line,) = [s for s in league_outcome.write_outcome(known) if "points that each part of Takyr adds" in s]
    # Blocks 1 and 2: 69.716 and 68.193 without MAN, 68.111 and 67.366 with it.
    assert line.endswith("So far, Takyr has more without MAN (1.22 points, 2 blocks) and may be better that way.")


def test_what_is_not_won_stands_where_wins_stand():
    """Methods that were not named beforehand are in the summary and in the README; parts with few blocks are open."""
    known = rows.read_folders([rows.find_ours()])
    told = league_outcome.write_outcome(known)
    found, ours = league_runs.find_standings(known), league.choose_ours(known)
    for column in ("lda-0.1", "sharding-2"):
        title = league.find_column(column)["title"]
        (short,) = [s for s in told if s.startswith(f"{title}, in short")]
        kinds = league_outcome.sort_comparisons(found, column, ours)
        mean = {f["arm"]: f["mean"] for f in found if f["column"] == column}
        enough = {a.id for a in league.list_arms() if a.id in mean and not a.ours and not a.like
                  and len(mean[a.id].keys() & mean[ours.id].keys()) >= factorial.ENOUGH}  # fmt: skip
        assert {arm.id for several in kinds.values() for arm in several} == enough
        (measured,) = [m for claim, m, _ in describe_league(known) if claim.endswith(title)]
        for kind, several in kinds.items():
            assert all(f"{arm.title} ({pair.mean:+.2f}" in short.partition(kind)[2] for arm, pair in several.items())
            assert all((pair.mean > 0) == (kind == "ahead of") for pair in several.values() if pair.excludes_zero)
            assert all(
                f"{arm.title} {pair.mean:+.1f} ± " in measured.partition(kind)[2] for arm, pair in several.items()
            )
    (line,) = [s for s in told if "points that each part of Takyr adds" in s]
    effects = factorial.find_last_effects(found, "lda-0.1")
    shown, unknown = factorial.find_needed(found)["lda-0.1"]
    assert {*shown, *unknown} == {*effects} == {"dual", "curved-pull", "MAN", "EMA"}
    assert all((n in shown) == (e.count >= 3 and e.mean - (e.half or math.inf) > 0) for n, e in effects.items())
    assert all(f"{name} {effect.mean:+.2f}" in line for name, effect in effects.items())


def test_the_running_mean_and_what_a_model_is_judged_on():
    """What a run records feeds the next choice; the running mean is that of the part, and changes nothing else."""
    keys = {"rounds": 3, "clients": 5, "per_round": 2, "model": "mlp", "progress": False}
    plain, both = steppe.run("fedavg", **keys), steppe.run("fedavg", running_mean=0.9, **keys)
    ema = steppe.run("fedavg", add=["ema:keep=0.9"], **keys)
    for a, b, e in zip(plain.history, both.history, ema.history, strict=True):
        assert b["running_mean"]["accuracy"] == e["accuracy"]
        rest = {k: v for k, v in b.items() if k not in ("running_mean", "seconds")}
        assert rest == {k: v for k, v in a.items() if k != "seconds"}
    held_out = steppe.run("fedavg", validation=0.2, judged_on="validation", **keys)
    assert all(r["accuracy"] == r["validation_accuracy"] for r in held_out.history)
    usual = steppe.run("fedavg", validation=0.2, **keys)
    assert [r["validation_accuracy"] for r in usual.history] == [r["accuracy"] for r in held_out.history]
    with pytest.raises(steppe.SteppeError, match="no samples are held out"):
        steppe.run("fedavg", judged_on="validation", **keys)


@pytest.mark.slow
def test_the_command_goes_on_from_its_rows(steppe):
    words = ("reproduce", "league", "--scale", "tiny", "--cells", "lda-0.1/fedavg", "--cells", "lda-0.1/feddyn")
    said = steppe(*words, "--out", "out", "--json")
    assert said.code == 0, said.err
    found = {f["arm"]: f for f in json.loads(said.out)["tables"]["league"] if f["column"] == "lda-0.1"}
    assert len(found["feddyn"]["mean"]) == 6
    made = rows.read_rows(Path("out/results/league.jsonl"))
    assert {r["config"]["judged_on"] for r in made if r["seed"] == SEED} == {"validation"}
    assert steppe(*words, "--out", "out", "--dry-run").out == "nothing is missing\n"
    assert "Tuning is not complete" in steppe(*words, "--out", "out").out
