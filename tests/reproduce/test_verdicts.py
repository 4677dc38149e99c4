"""What rows say, worked out by hand; rank correlations against scipy's."""

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from scipy import stats

from steppe.core.errors import SteppeError
from steppe.reproduce import judged_table, missing_runs, publish, recipes, survey, survey_page
from steppe.reproduce.audit import find_complaints
from steppe.reproduce.make_row import summarize_run
from steppe.reproduce.recipes import list_tables, load_table
from steppe.reproduce.rows import append_row, find_fault, find_statistic, read_folders, read_rows
from steppe.reproduce.verdicts import compare_with_paper, correlate_ranks, kendall, spearman

HOME = Path(__file__).parents[2]
COMMITTED = read_folders([HOME / "results"])
T1 = load_table("fedsol-table1")
AVG, NOVA = (next(c for c in T1.cells if c.id == f"cifar10/lda-0.1/{m}") for m in ("fedavg", "fednova"))


def verdict(name, id_, rows):
    return next(f for f in compare_with_paper(load_table(name), rows) if f.cell.id == id_)


@pytest.mark.parametrize(
    ("accuracy", "expected"), [(0.5763, "inside"), (0.5764, "outside"), (0.5463, "inside"), (0.5462, "outside")]
)
def test_a_point_and_a_half_is_the_least_band(row_for, accuracy, expected):
    f = verdict("fedsol-table1", AVG.id, [row_for(AVG, accuracy)])  # 56.13 ± 0.78: two deviations are 1.56
    assert f.band == pytest.approx(1.56)
    wide = {0.5764: "inside", 0.5462: "inside"}.get(accuracy, expected)
    assert f.verdict == wide
    a8 = next(
        c for c in load_table("fedsol-table8").cells if c.id == "rho-0/none"
    )  # the same number without a deviation
    assert verdict("fedsol-table8", a8.id, [row_for(a8, accuracy)]).verdict == expected


def test_two_deviations_where_that_is_more(row_for):
    c = next(c for c in T1.cells if c.id == "cifar10/sharding-2/fedavg")  # 51.48 ± 3.41
    assert verdict("fedsol-table1", c.id, [row_for(c, 0.5148 + 0.0681)]).verdict == "inside"
    assert verdict("fedsol-table1", c.id, [row_for(c, 0.5148 + 0.0683)]).verdict == "outside"


def test_a_deviation_of_two_runs_does_not_count(row_for):
    c = next(c for c in load_table("fedsmoo-table1").cells if c.id == "10-100/cifar10/dir-0.6/fedavg")
    f = verdict("fedsmoo-table1", c.id, [row_for(c, 0.80, best=0.82)])
    assert (f.band, f.verdict, f.also) == (1.5, "inside", {"best": "outside"})  # 79.52
    wide = next(c for c in T1.cells if c.id == "cifar10/sharding-2/fedavg")  # 51.48 ± 3.41
    bands = [next(f.band for f in compare_with_paper(replace(T1, runs=n), []) if f.cell == wide) for n in (1, 2, 3)]
    assert bands == [1.5, 1.5, pytest.approx(6.82)]


def test_seeds_are_averaged_and_failures_are_not_hidden(row_for):
    rows = [row_for(AVG, 0.55, seed=0), row_for(AVG, 0.57, seed=1)]
    f = verdict("fedsol-table1", AVG.id, rows)
    assert (f.ours, f.seeds, f.verdict) == (pytest.approx(56.0), [0, 1], "inside")
    assert (f.std, f.seconds) == (pytest.approx(2**0.5), 10.0)  # two processes shared the device
    broken = {**row_for(AVG, 0.1, seed=2), "failed": "the update of client 3 is not finite"}
    for key in ("last", "best", "mean_of_last_ten", "mean_of_last_fifty"):
        del broken[key]
    f = verdict("fedsol-table1", AVG.id, [*rows, broken])
    assert (f.ours, f.verdict, len(f.failed)) == (pytest.approx(56.0), "outside", 1)
    alone = verdict("fedsol-table1", AVG.id, [broken])
    assert (alone.ours, alone.verdict) == (None, "outside")


def test_other_verdicts(row_for):
    assert verdict("fedsol-table1", NOVA.id, [row_for(NOVA, 0.3)]).verdict == "paper says failed"
    assert verdict("fedsol-table1", NOVA.id, [row_for(AVG, 0.3)]).verdict == "not run"
    hessian = next(c for c in load_table("fedsmoo-table2").cells if c.id == "dir-0.6/fedsam-lambda1")
    without = verdict("fedsmoo-table2", hessian.id, [row_for(hessian, 0.8)])
    measured = row_for(hessian, 0.8, measures={"lambda1": {"lambda1": 140.0}})
    f = verdict("fedsmoo-table2", hessian.id, [measured])
    assert (without.verdict, f.verdict, f.ours) == ("not run", "not judged", 140.0)


def test_a_newer_row_wins(row_for):
    assert verdict("fedsol-table1", AVG.id, [row_for(AVG, 0.1), row_for(AVG, 0.56)]).values == [pytest.approx(56.0)]


def test_tried_recipes_are_shown_where_they_were_run(row_for):
    c = next(c for c in T1.cells if c.id == "tried/cifar10/lda-0.1/fedsam-rho0.5")
    assert not [f for f in compare_with_paper(T1, []) if f.cell.of]
    f = next(f for f in compare_with_paper(T1, [row_for(c, 0.52)]) if f.cell.of)
    assert (f.cell.id, f.verdict, f.cell.published.value) == (c.id, "inside", 52.14)
    assert "the radius of the released configuration" in publish.render_markdown(
        T1, compare_with_paper(T1, [row_for(c, 0.52)])
    )


def test_what_was_not_tried_is_said(row_for):
    c = next(c for c in T1.cells if c.id == "tried/cifar10/lda-0.1/fedsam-rho0.5")
    told = next(
        p
        for p in judged_table.write_introduction(T1, compare_with_paper(T1, [row_for(c, 0.52)]), "paper")
        if "were not run" in p
    )
    assert "fednova-genuine (FedNova as its own paper has it)" in told
    assert "fedsam-rho0.5" not in told


def test_a_tried_recipe_that_is_the_cells_own_is_not_shown(row_for):
    """On the digits every precision is the same."""
    tiny = load_table("fedsol-table1", "tiny")
    own, other = (next(c for c in tiny.cells if c.id == f"{i}")
                  for i in ("cifar10/lda-0.1/fedsam", "tried/cifar10/lda-0.1/fedsam-tf32"))  # fmt: skip
    assert own.hash == other.hash
    assert not [f for f in compare_with_paper(tiny, [row_for(own, 0.5)]) if f.cell.of]


@pytest.mark.parametrize("seed", range(5))
def test_rank_correlations(seed):
    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, 5, 8).astype(float), rng.integers(0, 5, 8).astype(float)  # with ties
    assert spearman(a.tolist(), b.tolist()) == pytest.approx(stats.spearmanr(a, b).statistic)
    assert kendall(a.tolist(), b.tolist()) == pytest.approx(stats.kendalltau(a, b).statistic)


def test_ranks_of_a_column(row_for):
    cells = [c for c in T1.main if c.column == "cifar10/lda-0.5"]
    rows = [row_for(c, c.published.value / 100) for c in cells[:4]]
    wanted = {"column": "cifar10/lda-0.5", "group": "", "methods": 4, "of": 8}
    found = correlate_ranks(T1, compare_with_paper(T1, rows))
    assert found == [wanted | dict.fromkeys(("spearman", "kendall"), pytest.approx(1.0))]
    assert kendall([1, 1], [1, 2]) is None
    last = min(cells[:4], key=lambda c: c.published.value)
    broken = [{**r, "failed": "not finite"} if r["recipe"] == last.hash else r for r in rows]
    assert correlate_ranks(T1, compare_with_paper(T1, broken))[0]["spearman"] == pytest.approx(
        1.0
    )  # what broke down is below all others
    first = max(cells[:4], key=lambda c: c.published.value)
    broken = [{**r, "failed": "not finite"} if r["recipe"] == first.hash else r for r in rows]
    assert correlate_ranks(T1, compare_with_paper(T1, broken))[0]["spearman"] == pytest.approx(
        -0.2
    )  # ranks 4 1 2 3 beside 1 2 3 4


def test_rows_survive_a_torn_line(tmp_path):
    path = tmp_path / "t.jsonl"
    append_row(path, {"a": 1})
    with path.open("a") as file:
        file.write('{"a": 2, "cut')
    append_row(path, {"a": 3, "é": "ü"})
    assert read_rows(path) == [{"a": 1}, {"a": 3, "é": "ü"}]
    assert read_folders([tmp_path, tmp_path / "nowhere"]) == read_rows(path)
    assert read_folders([tmp_path], "tiny") == []
    assert find_statistic({"top": {"values": [3.0, 2.0]}}, "top.values.1") == 2.0


def committed(tmp_path, rows):
    for row in rows:
        append_row(tmp_path / "results" / f"{row['table']}.jsonl", row)
    tables = tmp_path / "docs" / "reproductions"
    publish.write_files(publish.render_everything(read_folders([tmp_path / "results"]), tables))
    return tmp_path / "results", tables


def test_the_audit_passes_what_is_right(tmp_path, row_for):
    assert find_complaints(*committed(tmp_path, [row_for(AVG, 0.56), row_for(NOVA, 0.2)])) == []


def test_the_audit_sees_a_table_that_was_touched(tmp_path, row_for):
    places = committed(tmp_path, [row_for(AVG, 0.56)])
    page = places[1] / "fedsol-table1.md"
    page.write_text(page.read_text().replace("56.00", "56.13"))
    assert find_complaints(*places) == [f"{page} does not match the rows: run steppe reproduce tables"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"recipe": "00000000"}, "there is no recipe"),
        ({"cell": "cifar10/lda-0.5/fedavg"}, "does not belong to this cell"),
        ({"mean_of_last_ten": 0.6}, "statistics are not those of its curve"),
        ({"last": 0.6}, "statistics are not those of its curve"),
        ({"best": 0.6}, "statistics are not those of its curve"),
        ({"mean_of_last_fifty": 0.6}, "statistics are not those of its curve"),
        ({"validation": [0.5] * 300, "validation_mean_of_last_ten": 0.6}, "statistics are not those of its curve"),
        ({"commit": ...}, "has no commit"),
        ({"config": {"rounds": 299}}, "configuration is not the recipe's"),
        ({"config": {"lr": 0.02}}, "lr was 0.02"),
    ],
)
def test_the_audit_sees_a_row_that_is_not_what_it_says(tmp_path, row_for, change, told):
    row = row_for(AVG, 0.56)
    row = {k: v for k, v in {**row, **change}.items() if v is not ...}
    if "config" in change:
        row["config"] = {**row_for(AVG, 0.56)["config"], **change["config"]}
    append_row(tmp_path / "results" / "fedsol-table1.jsonl", row)
    found = find_complaints(tmp_path / "results", tmp_path)
    assert any(told in sentence for sentence in found), found


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"recipe": ...}, "recipe is missing"),
        ({"cell": 3}, "cell is 3, but must be text"),
        ({"seed": [1]}, "must be a whole number"),
        ({"seconds": {}}, "total seconds is missing"),
        ({"accuracy": []}, "accuracy is missing"),
        ({"config": {"lr": -1}}, "config.lr is -1, but must be above 0"),
        ({"config": {"key_of_tomorrow": 1}}, "there is no key 'config.key_of_tomorrow'"),
        ({"config": {"lr_schedule": ...}}, "lr_schedule is missing"),
    ],
)
def test_a_row_of_another_form_is_refused_by_every_command(tmp_path, steppe, row_for, change, told):
    row = row_for(AVG, 0.56)
    change = {"config": {**row["config"], **change["config"]}} if "config" in change else change
    row = {k: v for k, v in {**row, **change}.items() if v is not ...}
    row["config"] = {k: v for k, v in row["config"].items() if v is not ...}
    append_row(tmp_path / "rows" / "fedsol-table1.jsonl", row)
    for words in (("advise",), ("reproduce", "survey", "--dry-run"), ("reproduce", "check"), ("reproduce", "list")):
        said = steppe(*words, "--results", str(tmp_path / "rows"))
        assert said.code == 2, words
        assert told in said.err or (words[-1] == "check" and "the row has no recipe" in said.err)
    assert find_fault(row_for(AVG, 0.56)) == ""


def candidates(row_for, entrant, scores):
    return [row_for(c, 0.5, validation_mean_of_last_ten=s) for c, s in zip(entrant.tuning, scores, strict=True)]


def test_the_surveys_patterns_match_what_the_dry_run_prints(row_for):
    e = next(e for e in survey.list_entrants() if e.id == "lda-0.1/fedsam")
    tuned = candidates(row_for, e, (0.1, 0.3, 0.2))

    def find(glob, rows):
        chosen = survey.select_entrants([glob])
        jobs = survey.find_tuning_runs(chosen, rows, {}, [glob]), survey.find_final_runs(chosen, rows, 1, {}, [glob])
        return [j.cells[0].row.removeprefix("fedsam/") for several in jobs for j in several]

    tuning = ["rho=0.02/tuning", "rho=0.05/tuning", "rho=0.1/tuning"]
    for glob in ("lda-0.1/fedsam", "lda-0.1/fedsam/*", "lda-0.1/fedsam/rho=0.05"):  # tuned first
        assert (find(glob, []), find(glob, tuned)) == (tuning, ["rho=0.05"])
    assert find("lda-0.1/fedsam/rho=0.02/tuning", []) == ["rho=0.02/tuning"]
    assert find("lda-0.1/fedsam/rho=0.1", tuned) == []  # it was not chosen
    with pytest.raises(SteppeError, match="no cell matches"):
        survey.select_entrants(["lda-0.1/fedsam/rho=0.03"])


def test_the_survey_chooses_by_held_out_data_alone(row_for):
    e = next(e for e in survey.list_entrants() if e.id == "lda-0.1/fedsam")
    rows = candidates(row_for, e, (0.4, 0.6, 0.5))
    assert survey.choose_candidate(e, rows[:2]) is None  # one candidate has not been tried
    assert survey.choose_candidate(e, rows) == 1
    best_on_test = [{**rows[0], "mean_of_last_ten": 0.99, "last": 0.99}, *rows[1:]]
    assert survey.choose_candidate(e, best_on_test) == 1
    broken = [{**rows[1], "failed": "not finite"}]
    assert survey.choose_candidate(e, [rows[0], *broken, rows[2]]) == 2
    jobs = survey.find_final_runs([e], rows, 2, {})
    assert [(j.config.settings, j.config.seed, j.config.validation) for j in jobs] == [
        ({"rho": 0.05}, 0, 0.0), ({"rho": 0.05}, 1, 0.0)]  # fmt: skip


def test_the_surveys_sentence(row_for):
    made = {e.id: e for e in survey.list_entrants()}
    rows = []
    for id_, final in (("lda-0.1/fedavg", 0.55), ("lda-0.1/fedsam", 0.60), ("lda-0.1/feddyn+man", 0.58)):
        rows += candidates(row_for, made[id_], (0.1, 0.2, 0.3))
        rows.append(
            row_for(made[id_].final[2], final, measures={"lambda1": {"lambda1": 5.0}, "trace": {"value": 50.0}})
        )
    found = survey.rank_entrants(rows)
    told = survey_page.write_verdict(found, "lda-0.1")
    assert "The best is FedSAM (60.00 %)" in told
    assert "FedDyn + MAN (58.00 %), 2.00 points below" in told
    assert (
        "1 others are less than 3 points below the best, a difference that one seed cannot decide" in told
    )  # 58, not 55
    assert survey_page.write_verdict(found, "sharding-2") == "Nothing was run in this column."
    line = next(f for f in found if f["method"] == "fedsam" and f["column"] == "lda-0.1")
    assert (line["chosen"], line["lambda1"], line["flops_x"], line["bytes_x"]) == ("rho=0.1", 5.0, 2.0, 1.0)
    assert line["seconds"] == 5.0  # ten, and two processes shared the device
    page = survey_page.render_markdown(found)
    assert "Not run: FedAvgM, FedAdam" in page
    assert page.count("| rho=0.1 | 60.00 (1) |") == 1
    assert "published method is FedSAM (60.00 %); 0 of 1 compositions are above it" in page
    assert "One seed each" in page
    drawn = survey_page.draw_picture(found, "lda-0.1", "A & B")
    assert [w for w in ("FedSAM", "FedAvg", "FedDyn + MAN", "A &amp; B", "2.00×") if w not in drawn] == []
    assert drawn.index("FedSAM") < drawn.index("FedDyn + MAN") < drawn.index(">FedAvg<")


def test_a_cpu_takes_no_seconds_of_a_gpu(row_for):
    """Pages count a row of a CPU as a run, but its seconds nowhere; rows of the first rounds keep their device."""
    on_cpu = {"peak_gpu_mib": None, "hardware": "CPU (arm64), 8 CPU cores"}
    mixed = [row_for(AVG, 0.55), row_for(AVG, 0.57, seed=1, **on_cpu)]
    f = verdict("fedsol-table1", AVG.id, mixed)
    assert (f.ours, f.seconds) == (pytest.approx(56.0), 5.0)
    assert judged_table.summarize(T1, [f]).endswith("; 5 seconds of the device (runs on a CPU are not counted)")
    alone = verdict("fedsol-table1", AVG.id, mixed[:1])
    assert judged_table.summarize(T1, [alone]).endswith("; 5 seconds of the device")
    page = publish.render_markdown(T1, [f])
    assert "Run on CPU (arm64), 8 CPU cores, torch ?, no commit known; made up, torch ?" in page
    for rows, seconds in ((mixed, "5"), (mixed[1:], "")):
        index = publish.render_index({"fedsol-table1": compare_with_paper(T1, rows)})
        (line,) = [one for one in index.splitlines() if one.startswith("| [fedsol-table1]")]
        assert line.split(" | ")[7] == seconds
        line = next(x for x in publish.render_markdown(T1, compare_with_paper(T1, rows)).splitlines() if AVG.hash in x)
        assert line.split(" | ")[-2] == seconds
    e = next(e for e in survey.list_entrants() if e.id == "lda-0.1/fedsam")
    tuned = candidates(row_for, e, (0.1, 0.3, 0.2))
    for more, cell, told in (({}, "5.0", ""), (on_cpu, "", "Runs on a CPU have no seconds. ")):
        table = survey_page.make_table(survey.rank_entrants([*tuned, row_for(e.final[1], 0.5, **more)]), e.column, "")
        assert table.rows[0][-1] == cell
        assert table.note.startswith(f"{told}Not run: ")


def test_seeds_that_failed_are_not_counted_in_the_surveys_means(row_for):
    e = next(e for e in survey.list_entrants() if e.id == "lda-0.1/fedsam")
    final = [row_for(e.final[1], 0.5), row_for(e.final[1], 0.6, seed=1), row_for(e.final[1], 0.1, seed=2, failed="nan")]
    found = survey.rank_entrants([*candidates(row_for, e, (0.1, 0.3, 0.2)), *final])
    assert survey_page.make_table(found, e.column, "").rows[0][2] == "55.00 ± 7.07 (2); failed: 1"


def test_cheap_is_in_bytes_and_in_flops(row_for):
    """FedScar needs FedAvg's FLOPs and half as many bytes more; the composition that is best on held-out data is named,
    whatever it has on the test set."""
    made = {e.id: e for e in survey.list_entrants()}
    rows = []
    for id_, tuned, final in (
        ("fedavg", 0.2, 0.5),
        ("fedscar", 0.2, 0.7),
        ("feddyn+man", 0.4, 0.55),
        ("feddyn+ema", 0.3, 0.6),
    ):
        entrant = made[f"lda-0.1/{id_}"]
        rows += [*candidates(row_for, entrant, (0.1, 0.15, tuned)), row_for(entrant.final[2], final, best=final + 0.04)]
    found = survey.rank_entrants(rows)
    assert "the best is FedDyn + EMA (60.00 %), 10.00 points below" in survey_page.write_verdict(found, "lda-0.1")
    assert "on held-out data the choice is FedDyn + MAN (55.00 %)" in " ".join(
        survey_page.write_findings(found, "lda-0.1")
    )
    expected = [("FedScar", 70, 74, False), ("FedDyn + EMA", 60, 64, True), ("FedDyn + MAN", 55, 59, True),
                ("FedAvg", 50, 54, False)]  # fmt: skip
    check_picture(survey_page.draw_picture(found, "lda-0.1", "t"), expected)


def check_picture(drawn, expected):
    """Dots stand where the axis says, filled for the last ten rounds, hollow for the best, coloured by kind."""
    root = ElementTree.fromstring(drawn)
    texts, dots = (list(root.iter("{http://www.w3.org/2000/svg}" + kind)) for kind in ("text", "circle"))
    axis = [(float(e.get("x")), float(e.text)) for e in texts if e.get("text-anchor") == "middle"]
    (x0, v0), (x1, v1) = min(axis), max(axis)
    assert v0 < v1
    kinds, dots = [d.get("fill") for d in dots[:2]], dots[2:]  # the legend: published, composition
    for (title, accuracy, best, composed), hollow, filled in zip(expected, dots[::2], dots[1::2], strict=True):
        places = [v0 + (float(d.get("cx")) - x0) * (v1 - v0) / (x1 - x0) for d in (filled, hollow)]
        assert places == [pytest.approx(accuracy, abs=0.05), pytest.approx(best, abs=0.05)], title
        colour = kinds[composed]
        assert (filled.get("fill"), hollow.get("fill"), hollow.get("stroke")) == (colour, "#fff", colour)
        name = next(e for e in texts if e.text == title)
        assert abs(float(name.get("y")) - float(filled.get("cy"))) < 8


def test_what_the_running_mean_does_by_itself_is_told(row_for):
    made = {e.id: e for e in survey.list_entrants()}
    rows = []
    for id_, final in (("feddyn", 0.60), ("fedsam", 0.50), ("feddyn+ema", 0.6375)):
        entrant = made[f"lda-0.1/{id_}"]
        rows += [*candidates(row_for, entrant, (0.1, 0.2, 0.3)), row_for(entrant.final[2], final)]
    told = " ".join(survey_page.write_findings(survey.rank_entrants(rows), "lda-0.1"))
    assert "changes accuracy by these points: FedDyn +3.75" in told
    assert "changes accuracy" not in " ".join(survey_page.write_findings(survey.rank_entrants(rows[:8]), "lda-0.1"))


def test_the_surveys_notes_are_what_the_rows_say():
    """Numbers that were written by hand, against the committed rows."""
    notes = " ".join(recipes.read_table_file("survey")["notes"])
    rows = {r["cell"]: r for r in read_rows(HOME / "results" / "survey.jsonl") if r["seed"] == 0}

    def at_75(cell):
        return f"{100 * np.mean(rows[f'lda-0.1/{cell}']['accuracy'][65:75]):.0f} %"

    man = "fedlesam_d+man+ema/rho=0.05,alpha=0.1,man:weight=0.15,ema:keep=0.9"
    for title, cell, between in (
        ("in rounds 66 to 75 FedAvg + EMA has", "fedavg+ema/ema:keep=0.9", "on the tuning's division and"),
        ("FedGMT", "fedgmt/beta=10.0", "and"),
        ("FedLESAM-D + MAN + EMA", man, "and"),
    ):
        assert f"{title} {at_75(cell + '/tuning')} {between} {at_75(cell)}" in notes
    held_out = [f"{100 * rows[f'lda-0.1/{c}/tuning']['validation_mean_of_last_ten']:.0f} %"
                for c in ("fednsam/rho=0.05,gamma=0.7", "scaffold/lr=0.005", "fedavg/lr=0.005")]  # fmt: skip
    assert f"the third ({held_out[0]} there)" in notes
    assert (
        f"({held_out[1]} and {held_out[2]} of the held-out data; its third candidate, lr = 0.02, breaks down" in notes
    )
    assert "failed" in rows["lda-0.1/scaffold/lr=0.02/tuning"]
    assert max(rows["lda-0.1/scaffold/lr=0.005"]["accuracy"]) < 0.21
    chosen = rows["lda-0.1/fednsam/rho=0.05,gamma=0.7"]
    assert (chosen["config"]["momentum"], chosen["config"]["settings"]["gamma"]) == (0.9, 0.7)
    there = [r for r in read_rows(HOME / "results" / "league.jsonl") if r["cell"].startswith("lda-0.1/fednsam/")]
    model, mean = (100 * np.mean([r[s] for r in there]) for s in ("mean_of_last_ten", "running_mean_of_last_ten"))
    assert {(r["config"]["momentum"], r["config"]["lr"], r["config"]["clip"]) for r in there} == {(0.0, 0.1, 10.0)}
    assert {r["config"]["settings"]["gamma"] for r in there} == {0.7}
    assert f"the same γ has {model:.1f} % over six draws, and {mean:.1f} % with a running mean" in notes
    table = survey_page.make_table(survey.rank_entrants(list(rows.values())), "lda-0.1", "")
    assert {r[0] for r in table.rows if "†" in r[0]} == {"FedNSAM †", "SCAFFOLD †"}
    assert table.note.startswith("† Published without local momentum")


HAND_WRITTEN = [  # table, cell, how far it is above (or the number itself, if None), what the notes say
    ("fedsol-table1", "tried/cifar10/lda-0.05/fedntd-uniform", None, "adds a point ({:.1f})"),
    ("fedsol-table1", "tried/cifar10/lda-0.05/fedntd-schedule1", None, "with a different schedule it has {:.1f}"),
    ("fedsol-table1", "tried/cifar10/lda-0.05/fedntd-tau3", None, "with τ = 3 ({:.1f})"),
    ("fedsol-table1", "tried/cifar10/lda-0.05/fedntd-beta0.5", None, "half the weight ({:.1f})"),
    ("fedsol-table1", "tried/cifar10/sharding-2/fedntd-fedntd-draw", None, "from the paper ({:.1f} and"),
    ("fedsol-table1", "tried/cifar10/sharding-2/fedsol-fedntd-draw", None, "and {:.1f}). Under LDA"),
    ("fedsol-table1", "tried/cifar10/lda-0.1/fedavg-fedntd-draw", None, "inside at α = 0.1 ({:.1f})"),
    ("fedsol-table1", "tried/cifar10/lda-0.05/fedavg-fedntd-draw", None, "outside at α = 0.05 ({:.1f})"),
    ("fedsol-table1", "tried/cifar10/lda-0.1/fedavg-partition1", None, "on the released draw, {:.1f}, 55.4 and 57.6"),
    ("fedsol-table1", "tried/cifar10/lda-0.1/fedavg-partition2", None, "58.3, {:.1f} and 57.6"),
    ("fedsol-table1", "tried/cifar10/lda-0.5/fedavg-partition1", None, "(α = 0.5: 72.1, {:.1f} and 73.0)"),
    ("fedsol-table1", "tried/cifar10/lda-0.1/fedavg-schedule1", None, "schedules of clients give {:.1f} and 53.8"),
    ("fedsol-table1", "tried/cifar10/lda-0.1/fedasam-rho0.1", "cifar10/lda-0.1/fedavg", "it is {:.1f} above FedAvg at"),
    ("fedsol-table1", "cifar10/lda-0.5/fednova", "paper", "FedNova at α = 0.5 ({:.1f} points short"),
    ("fedsol-table1", "tried/cifar10/lda-0.5/fednova-genuine", "paper", "the genuine one is {:.1f} above"),
    ("fedsol-table5", "cifar10/knnper-1", "paper", "the others are {:.1f} to 8.7 points short"),
    ("fedsol-table5", "cifar10/perfedavg-1", "paper", "1.6 to {:.1f} points short"),
    ("fedsol-table6", "tried/cifar10/lda-0.1/a1-released", None, "on all layers it has {:.1f}"),
    ("fedsol-table6", "tried/cifar10/lda-0.1/a2-adaptive", "paper", "A2 is {:.1f} points short"),
    ("fedsol-table6", "tried/cifar10/lda-0.1/a6-adaptive", "paper", "A6 {:.1f} above"),
    ("fedsol-table6", "tried/cifar10/lda-0.1/a5-scaled", None, "makes it worse ({:.1f})"),
    ("fedsol-table6", "tried/cifar10/lda-0.1/a5-beta0.3", "paper", "it stays {:.1f} to 3.5 points short"),
    ("fedsol-table6", "tried/cifar10/lda-0.1/a5-beta0.5", "paper", "3.2 to {:.1f} points short"),
    ("fedsol-table7", "cifar10/fednova-combined", "paper", "combination is {:.1f} points above the paper's"),
    ("fedsol-table7", "cifar10/moon-base", "paper", "MOON as a base is {:.1f} points short"),
    ("fedsol-table8", "tried/rho-1.5/head-fixed", None, "({:.1f} at ρ = 1.5"),
    ("man-accuracy", "cifar100/dir-0.3/fedavg-man-cifar100", "paper", "FedAvg+MAN is {:.1f} points short"),
]  # fmt: skip


@pytest.mark.parametrize(("table", "id_", "than", "words"), HAND_WRITTEN)
def test_numbers_in_the_notes_of_a_table_are_the_rows(table, id_, than, words):
    t = load_table(table)
    found = {f.cell.id: f for f in compare_with_paper(t, COMMITTED)}
    value = found[id_].ours if than != "paper" else abs(found[id_].difference)
    value -= found[than].ours if than in found else 0.0
    assert words.format(value) in " ".join(t.notes)


def test_what_mans_notes_say_about_the_order():
    t = load_table("man-accuracy")
    column = [f for f in compare_with_paper(t, COMMITTED) if f.cell.column == "cifar100/dir-0.3" and f.ours]
    rest = [f for f in column if f.cell.row != "fedavg-cifar100"]
    whole, without = (stats.spearmanr([f.cell.published.value for f in some], [f.ours for f in some]).statistic
                      for some in (column, rest))  # fmt: skip
    assert f"rank correlation of {whole:+.2f} with the paper's, and of {without:+.2f} without it" in " ".join(t.notes)


def test_sharpness_beside_accuracy(row_for):
    """Four methods, the sharper the better: a rank correlation of one; the fifth is at chance and does not count."""
    made = {e.id: e for e in survey.list_entrants()}
    rows = []
    for id_, final in (("fedavg", 0.5), ("fedsam", 0.55), ("fedgmt", 0.6), ("feddyn", 0.65), ("fednsam", 0.1)):
        entrant = made[f"lda-0.1/{id_}"]
        rows += candidates(row_for, entrant, (0.1, 0.2, 0.3))
        sharp = {"lambda1": {"lambda1": 100 * final}, "trace": {"value": -final}}
        rows.append(row_for(entrant.final[2], final, measures=sharp))
    told = " ".join(survey_page.write_findings(survey.rank_entrants(rows), "lda-0.1"))
    assert "Among the 4 with more than 20 %" in told
    assert "+1.00 (λ1) and -1.00 (trace)" in told


def test_the_grid_marks_what_is_inside(row_for):
    prox = next(c for c in T1.cells if c.id == "cifar10/lda-0.1/fedprox")  # 59.80 ± 1.12
    page = publish.render_markdown(T1, compare_with_paper(T1, [row_for(AVG, 0.56), row_for(prox, 0.5)]))
    assert "| FedAvg | 56.00 / 56.13 ✓ |" in page
    assert "| FedProx | 50.00 / 59.80 ✗ |" in page
    assert "| FedProx | 59.80 ± 1.12 | 50.00 | -9.80 | 2.24 | outside |" in page


def test_where_it_was_run_is_told(row_for):
    row = row_for(AVG, 0.56, hardware="one card", versions={"torch": "2.11"}, commit="0123456789abcdef+changes")
    assert "Run on one card, torch 2.11, commit 0123456789ab and changes." in publish.render_markdown(
        T1, compare_with_paper(T1, [row])
    )


def test_json_is_complete(row_for):
    told = publish.collect_facts(T1, compare_with_paper(T1, [row_for(AVG, 0.56)]))
    mine = next(c for c in told["cells"] if c["cell"] == AVG.id)
    assert json.loads(json.dumps(told)) == told
    assert (mine["ours"], mine["difference"], mine["verdict"]) == (56.0, -0.13, "inside")
    assert mine["command"] == "steppe reproduce fedsol-table1 --cells 'cifar10/lda-0.1/fedavg'"
    assert mine["changes"]["partition"] == "lda(0.1)"


def test_latex_knows_every_letter(row_for):
    """A stock LaTeX refuses letters that it has no definition for."""
    for name in list_tables():
        t = load_table(name)
        text = publish.render_latex(t, compare_with_paper(t, [row_for(c, 0.5) for c in t.cells[:3]]))
        assert not {c for c in text if ord(c) > 255}, name


def test_statistics_of_a_curve():
    curve, held_out = np.random.default_rng(0).random((2, 60)).tolist()
    records = [{"accuracy": a, "validation_accuracy": h, "train_loss": 1.0}
               for a, h in zip(curve, held_out, strict=True)]  # fmt: skip
    row = summarize_run(records, {"rounds": 60, "last": curve[-1], "best": max(curve), "loss": 0.5})
    expected = {"mean_of_last_ten": np.mean(curve[50:]), "mean_of_last_fifty": np.mean(curve[10:]),
                "validation_mean_of_last_ten": np.mean(held_out[50:]), "last": curve[59],
                "best": max(curve)}  # fmt: skip
    assert {k: row[k] for k in expected} == {k: pytest.approx(v, abs=1e-6) for k, v in expected.items()}
    assert row["accuracy"] == [round(a, 5) for a in curve]


def test_a_run_that_was_not_looked_at_is_made_again(row_for):
    """Table 5 wants FedAvg's fine-tuned clients: Table 1's row has none of them."""
    ids = ["cifar10/fedavg-5"]
    assert len(missing_runs.find_missing_runs(["fedsol-table5"], "paper", ids, 1, False, [row_for(AVG, 0.5)], {})) == 1
    tuned = row_for(AVG, 0.5, personal={"5": {"mean": 0.9}})
    assert missing_runs.find_missing_runs(["fedsol-table5"], "paper", ids, 1, False, [tuned], {}) == []
