"""`steppe reproduce` from end to end, at the tiny scale; and what is committed."""

import json
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from steppe.jobs.places import Here
from steppe.jobs.queue import Queue
from steppe.reproduce import judged_table, missing_runs, recipes, rows
from steppe.reproduce.audit import find_complaints
from steppe.reproduce.recipes import load_table

HOME = Path(__file__).parents[2]


@pytest.mark.slow
def test_everything_committed_is_what_the_rows_say():
    assert find_complaints(HOME / "results", HOME / "docs" / "reproductions") == []


@pytest.mark.slow
def test_the_whole_of_table_1(steppe, tmp_path):
    """All 112 cells; columns that differ in their data alone are the same run on the digits."""
    said = steppe("reproduce", "fedsol-table1", "--scale", "tiny", "--json")
    assert said.code == 0, said.err
    told = json.loads(said.out)["tables"]["fedsol-table1"]
    cells = told["cells"]
    assert len(cells) == 112  # and nothing tried: another precision is the same run on the digits
    assert {c["verdict"] for c in cells} == {"not judged"}  # the numbers of a toy
    assert told["ranks"] == []
    assert len(rows.read_rows(tmp_path / "runs/reproduce-tiny/results/fedsol-table1.jsonl")) == 8 * 6


@pytest.mark.slow
def test_all_tables_are_written_where_it_is_told(steppe, tmp_path):
    """From the rows that the library has, and nothing next to the folder."""
    said = steppe("reproduce", "tables", "--out", "deep/pages")
    assert said.code == 0, said.err
    assert sorted(p.name for p in (tmp_path / "deep").iterdir()) == ["pages"]
    found = {p.relative_to(HOME / "docs") for p in (HOME / "docs" / "reproductions").iterdir() if p.suffix == ".md"}
    for path in {*found, Path("survey.md"), Path("league.md"), Path("how-to/choose.md")}:
        assert (tmp_path / "deep/pages" / path).read_text() == (HOME / "docs" / path).read_text(), path
    checked = steppe("reproduce", "check", "--out", "deep/pages")
    assert checked.code == 0, checked.err


ONE = ("reproduce", "fedsol-table1", "--scale", "tiny", "--out", "out", "--cells", "cifar10/sharding-2/fed[as]vg")
RESULTS = Path("out/results/fedsol-table1.jsonl")


def test_what_is_there_is_not_run_again(steppe):
    first = steppe(*ONE)
    assert first.code == 0, first.err
    assert "This is the tiny scale" in first.out
    before = RESULTS.read_text()
    (row,) = rows.read_rows(RESULTS)
    config = row["config"]
    assert (row["cell"], row["seed"], config["algorithm"], config["partition"]) == (
        "cifar10/sharding-2/fedavg", 0, "fedavg", "sharding(2)")  # fmt: skip
    assert len(row["accuracy"]) == config["rounds"]
    assert row["mean_of_last_ten"] == pytest.approx(sum(row["accuracy"]) / len(row["accuracy"]), abs=1e-5)
    assert row["recipe"] == next(c.hash for c in load_table("fedsol-table1", "tiny").cells if c.id == row["cell"])
    assert row["seconds"]["total"] >= row["seconds"]["rounds"] > 0
    assert {"hardware", "versions", "commit", "cost", "partition", "peak_gpu_mib", "tf32"} <= set(row)
    assert "data_folder" not in config  # whose machine it was is nobody's business
    again = steppe(*ONE)
    assert (again.code, again.err, RESULTS.read_text()) == (0, "", before)
    more = steppe(*ONE, "--seeds", "2")
    assert (more.code, [r["seed"] for r in rows.read_rows(RESULTS)]) == (0, [0, 1])
    assert rows.read_rows(RESULTS)[1]["accuracy"] != row["accuracy"]


def test_four_formats_that_agree(steppe):
    assert steppe(*ONE, "--formats", "md,tex,html,json").code == 0
    ours = f"{100 * rows.read_rows(RESULTS)[0]['mean_of_last_ten']:.2f}"
    texts = {kind: Path(f"out/fedsol-table1.{kind}").read_text() for kind in ("md", "tex", "html", "json")}
    assert all(ours in text for kind, text in texts.items() if kind != "json")
    facts = next(c for c in json.loads(texts["json"])["cells"] if c["seeds"])
    assert f"{facts['ours']:.2f}" == ours
    assert "51.48 ± 3.41" in texts["md"]
    assert r"\toprule" in texts["tex"]
    assert "<script" not in texts["html"]


def test_a_budget_that_the_committed_rows_exceed_starts_nothing(steppe):
    words = ("reproduce", "fedsol-table1", "--cells", "cifar10/lda-0.1/fedavg", "--seeds", "9", "--out", "out")
    said = steppe(*words, "--budget", "1")
    assert said.code == 0, said.err  # the data are missing, so a run that starts would fail
    assert "did not fit into the budget" in said.err
    assert steppe(*words, "--budget", "1e6").code == 2


def test_a_toy_is_called_a_toy_and_gets_no_verdict(steppe):
    said = steppe(*ONE)
    assert said.code == 0, said.err
    page = Path("out/fedsol-table1.md").read_text()
    for text in (said.out, page):
        assert "say nothing about the paper" in text
        assert not [word for word in ("inside", "outside", "✓", "two of the paper's", "Spearman") if word in text]
    assert sorted(p.name for p in Path("out").iterdir()) == ["fedsol-table1.md", "results"]


def test_outside_a_checkout_everything_goes_to_runs(steppe, tmp_path):
    words = ("fedsol-table1", "--cells", "cifar10/lda-0.1/fedavg", "--budget", "0")
    assert steppe("reproduce", *words).code == 0
    assert [p.name for p in tmp_path.iterdir()] == ["runs"]
    assert Path("runs/reproduce/fedsol-table1.md").exists()
    (tmp_path / missing_runs.CHECKOUT).mkdir(parents=True)
    assert steppe("reproduce", *words).code == 0
    assert Path("docs/reproductions/fedsol-table1.md").exists()
    assert (HOME / missing_runs.CHECKOUT).is_dir()


@pytest.mark.slow
def test_several_processes_find_the_same(steppe):
    cells = ("--cells", "cifar10/sharding-2/fedavg", "--cells", "cifar10/lda-0.5/fedsam")
    words = ("reproduce", "fedsol-table1", "--scale", "tiny", *cells)
    here, apart = steppe(*words, "--out", "here"), steppe(*words, "--out", "apart", "--jobs", "2")
    assert (here.code, apart.code) == (0, 0), here.err + apart.err
    found = [{r["recipe"]: r["accuracy"] for r in rows.read_rows(Path(place) / "results/fedsol-table1.jsonl")}
             for place in ("here", "apart")]  # fmt: skip
    assert len(found[0]) == 2
    assert found[0] == found[1]


def test_a_budget_that_is_spent_runs_nothing(steppe):
    said = steppe(*ONE, "--budget", "0")
    assert said.code == 0
    assert "1 run did not fit into the budget" in said.err
    assert not RESULTS.exists()
    assert "not run" in Path("out/fedsol-table1.md").read_text()


def test_what_shows_most_is_run_first():
    """A table's own order; what needs files that were not there is last, whatever its table."""

    def list_cells(*names):
        jobs = missing_runs.find_missing_runs(names, "paper", [], 1, False, [], {})
        return [j.cells[0].id for j in missing_runs.sort_as_run(jobs)]

    first = {f"10-100/cifar10/dir-0.6/{m}" for m in ("fedavg", "scaffold", "feddyn", "fedsam", "mofedsam", "fedsmoo")}
    assert {*list_cells("fedsmoo-table1")[:6]} == first
    assert [c.rpartition("/")[0] for c in list_cells("fedgmt")[:12]] == ["cnn/dir-0.1"] * 6 + ["cnn/dir-0.01"] * 6
    assert list_cells("fednsam")[0] == "lenet/fedavg"
    both = list_cells("man-accuracy", "man-hessian")
    assert {c.partition("/")[0] for c in both[:30]} == {"cifar100"}
    assert {c.partition("/")[0] for c in both[30:]} == {"tiny-imagenet"}


def test_every_order_names_cells():
    for name in recipes.list_tables():
        table = recipes.load_table(name)
        for glob in (g for group in table.order for g in group):
            assert any(fnmatchcase(c.id, glob) for c in table.main), (name, glob)


def test_a_run_measures_what_another_table_needs():
    """Table 2 of FedSMOO is about the final models of Table 1: 800 rounds are not trained twice for it."""
    ids = [f"10-100/cifar10/dir-0.6/{m}" for m in ("fedsam", "scaffold")]
    jobs = missing_runs.find_missing_runs(["fedsmoo-table1"], "paper", ids, 1, False, [], {})
    measured = {j.config.algorithm: j.config.measure for j in jobs}
    wanted = {m for c in recipes.load_table("fedsmoo-table2").main if c.column == "dir-0.6" for m in c.config.measure}
    assert {*measured["fedsam"]} == wanted != set()
    assert measured["scaffold"] == []


def test_a_process_stays_with_its_algorithm():
    jobs = missing_runs.find_missing_runs(["fedsol-table1", "fedsol-table6"], "paper", ["cifar10/*"], 2, False, [], {})
    assert len(jobs) == 2 * (48 + 5)  # A0 and A1 are cells of table 1
    queue = Queue([Here, Here])
    queue.waiting = list(jobs)
    first = queue._choose("")
    assert (first.config.algorithm, first.config.partition) == ("fedsam", "lda(0.05)")  # the longest of all
    assert {c.table for c in first.cells} == {"fedsol-table1"}
    queue.waiting.remove(first)
    queue.slots[0].job = first
    assert queue._choose("").group != first.group
    third = queue._choose(first.group)
    assert (third.group, third.stage) == (first.group, (0, 0, 0, 0, 0))
    stages = []
    while job := queue._choose(""):
        queue.waiting.remove(job)
        stages.append(job.stage)
    assert stages == sorted(stages)  # table by table, and second seeds after everybody's first
    assert stages[-1] == (1, 0, 0, 1, 0)


def test_cells_that_are_named_first_run_first():
    globs = ["cifar10/lda-0.1/fedsol", "*/sharding-2/fedavg", "cifar10/lda-0.1/*"]
    jobs = missing_runs.find_missing_runs(["fedsol-table1"], "paper", globs, 1, False, [], {})
    assert [job.cells[0].id for job in jobs][:2] == ["cifar10/lda-0.1/fedsol", "cifar10/sharding-2/fedavg"]
    queue = Queue([Here])
    queue.waiting = list(jobs)
    assert queue._choose("").cells[0].id == "cifar10/lda-0.1/fedsol"  # though FedSAM takes longer


def test_cells_that_share_a_run_are_looked_at_together():
    jobs = missing_runs.find_missing_runs(["fedsol-table1", "fedsol-table5"], "paper",
                               ["cifar10/lda-0.1/fedavg", "cifar10/fedavg-*"], 1,
                               False, [], {"device": "cpu"})  # fmt: skip
    (job,) = jobs
    assert ([c.id for c in job.cells], job.config.personal, job.config.device) == (
        ["cifar10/lda-0.1/fedavg", "cifar10/fedavg-1", "cifar10/fedavg-5"], [1, 5], "cpu")  # fmt: skip


def test_list_and_dry_run(steppe):
    listed = json.loads(steppe("reproduce", "list", "--json").out)
    assert [t["table"] for t in listed] == recipes.list_tables()
    dry = steppe("reproduce", "fedsol-table1", "--cells", "cifar10/lda-0.1/*", "--seeds", "9", "--dry-run")
    last = [line for line in dry.out.splitlines() if line.endswith("seed 8")]  # which nobody has run
    assert (dry.code, len(last)) == (0, 8)
    assert dry.err.startswith("missing: The data set cifar10 is expected in data/cifar10, which does not exist.")
    Path("data/cifar10").mkdir(parents=True)
    dry = steppe("reproduce", "fedsol-table1", "--cells", "cifar10/lda-0.1/*", "--seeds", "9", "--dry-run")
    assert dry.err.startswith("missing: The file data_batch_1.bin or data_batch_1 is expected in data/cifar10")
    assert "fedsol-table1" in steppe("reproduce", "list").out


def test_a_dry_run_is_in_the_order_of_the_queue_and_says_how_long(row_for):
    """One process takes the group with the most work, and all of it; times are those of rows with the same model."""
    cells = [c for c in load_table("fedsol-table1").main if c.column in ("cifar10/lda-0.1", "cifar10/lda-0.5")]
    jobs = missing_runs.find_runs_of_cells(cells, [], 2, {})
    order = missing_runs.sort_as_run(jobs)
    queue, last = Queue([Here]), ""
    queue.waiting = list(jobs)
    for job in order:
        chosen = queue._choose(last)
        assert (chosen.stage, chosen.group, chosen.weight) == (job.stage, job.group, job.weight)
        queue.waiting.remove(chosen)
        last = chosen.group
    known = [row_for(cells[0], 0.5, peak_gpu_mib=100.0, processes=2, seconds={"total": 40.0})]
    own = next(job for job in jobs if job.cells[0].id == cells[0].id)
    seconds, told = missing_runs.estimate_seconds(jobs, known)
    assert seconds[jobs.index(own)] == pytest.approx(20.0)
    assert all(s == pytest.approx(20.0 * j.weight / own.weight) for s, j in zip(seconds, jobs, strict=True))
    assert told[1].startswith(f"about {sum(seconds):,.0f} seconds of the GPU that made the rows, for {len(jobs)} of")
    on_cpu = row_for(cells[0], 0.5, peak_gpu_mib=None)
    assert missing_runs.estimate_seconds(jobs, [on_cpu])[0] == [None] * len(jobs)
    other = missing_runs.find_missing_runs(["fedsol-table9"], "paper", ["cifar10/vgg11-*"], 1, False, [], {})
    seconds, told = missing_runs.estimate_seconds(other, known)
    assert (seconds, told[-1]) == ([None] * 4, "?: no row has the model vgg11, so nothing is known about their time")


def test_list_counts_what_a_table_has(steppe, monkeypatch, tmp_path, row_for):
    """Table 5 shares runs with Table 1, which were not fine-tuned; costs need no run."""
    monkeypatch.chdir(HOME)

    def listed(*options):
        return {t["table"]: t["run"] for t in json.loads(steppe("reproduce", "list", "--json", *options).out)}

    known = rows.read_folders([HOME / "results"])
    for name in ("fedsol-table1", "fedsol-table5", "fedsol-table7", "fedscar-costs"):
        found = judged_table.judge_table(load_table(name), known)
        assert listed()[name] == sum(bool(f.seeds) for f in found if not f.cell.of), name
    assert listed()["fedsol-table8"] == 13
    dry = steppe("reproduce", "fedsol-table8", "--dry-run", "--device", "cuda")
    assert (dry.code, dry.out) == (0, "nothing is missing\n")
    before = listed()
    monkeypatch.chdir(tmp_path)  # the rows that come with the library count anywhere, those of --results too
    assert listed("--results", str(tmp_path)) == before
    (cell,) = [c for c in load_table("fedsol-table9").cells if c.id == "cifar10/vgg11-fedavg"]
    rows.append_row(tmp_path / "fedsol-table9.jsonl", row_for(cell, 0.5))
    assert listed("--results", str(tmp_path))["fedsol-table9"] == before["fedsol-table9"] + 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("fedsol-table11",), "fedsol-table1"),
        (("fedsol-table1", "--cells", "cifar10/lda-0.2/*"), "no cell matches"),
        (("fedsol-table1", "--scale", "huge"), "there is no such scale"),
        (("league", "fedsol-table1"), "cannot be combined with tables"),
        (("survey", "--cells", "lda-0.1/fedprxo"), "lda-0.1/fedprox"),
        (("survey", "--scale", "tinny", "--dry-run"), "did you mean 'tiny'"),
        (("leage",), "did you mean 'league'"),
        (("check", "fedsol-table1"), "cannot be combined with tables"),
        (("fedsol-table1", "--formats", "pdf"), "there is no format 'pdf'"),
        (("fedsol-table1", "--scale", "tiny", "--device", "gpu"), "must be cpu, cuda"),
    ],
)
def test_mistakes_are_told(steppe, words, told):
    said = steppe("reproduce", *words)
    assert said.code == 2
    assert told in said.err
    assert len(said.err) < 500  # the nearest, and not four hundred ids
    assert not Path("runs").exists()


def test_missing_data_is_told_cell_by_cell(steppe):
    said = steppe("reproduce", "fedsol-table1", "--cells", "svhn/lda-0.1/fedavg", "--out", "out")
    assert said.code == 2
    assert "svhn is expected in" in said.err
    assert not RESULTS.exists()


@pytest.mark.slow
def test_a_small_survey(steppe):
    words = ("reproduce", "survey", "--scale", "tiny", "--cells", "lda-0.1/fedprox", "--out", "out")
    said = steppe(*words, "--json")
    assert said.code == 0, said.err
    line = next(e for e in json.loads(said.out)["tables"]["survey"] if e["accuracy"] is not None)
    assert (line["method"], line["column"], len(line["tuned"])) == ("fedprox", "lda-0.1", 3)
    assert line["tuned"][line["chosen"]] == max(line["tuned"].values())
    assert line["trace"] is not None
    made = rows.read_rows(Path("out/results/survey.jsonl"))
    assert sorted("validation" in r for r in made) == [False, True, True, True]
    page = Path("out/survey.md").read_text()
    assert f"{line['accuracy']:.2f}" in page
    assert steppe(*words).err == ""  # nothing was left to run
