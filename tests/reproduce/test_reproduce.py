"""`steppe reproduce` from end to end, at the tiny scale; and what is committed."""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from steppe.reproduce import missing_runs, recipes, rows, work
from steppe.reproduce.audit import complaints
from steppe.reproduce.recipes import table

HOME = Path(__file__).parents[2]


@pytest.mark.slow
def test_everything_committed_is_what_the_rows_say():
    assert complaints(HOME / "results", HOME / "docs" / "reproductions", HOME / "docs" / "league.md") == []


@pytest.mark.slow
def test_the_whole_of_table_1(steppe, tmp_path):
    """All 112 cells; columns that differ in their data alone are the same run on the digits."""
    said = steppe("reproduce", "fedsol-table1", "--scale", "tiny", "--json")
    assert said.code == 0, said.err
    told = json.loads(said.out)["tables"]["fedsol-table1"]
    cells = told["cells"]
    assert len(cells) == 112  # and nothing tried: another precision is the same run on the digits
    assert not [c["cell"] for c in cells if c["verdict"] == "not run"]
    assert len(told["ranks"]) == 14
    assert len(rows.read(tmp_path / "runs/reproduce-tiny/results/fedsol-table1.jsonl")) == 8 * 6


ONE = ("reproduce", "fedsol-table1", "--scale", "tiny", "--out", "out", "--cells", "cifar10/sharding-2/fed[as]vg")
RESULTS = Path("out/results/fedsol-table1.jsonl")


def test_what_is_there_is_not_run_again(steppe):
    first = steppe(*ONE)
    assert first.code == 0, first.err
    assert "This is the tiny scale" in first.out
    before = RESULTS.read_text()
    (row,) = rows.read(RESULTS)
    config = row["config"]
    assert (row["cell"], row["seed"], config["algorithm"], config["partition"]) == (
        "cifar10/sharding-2/fedavg", 0, "fedavg", "sharding(2)")  # fmt: skip
    assert len(row["accuracy"]) == config["rounds"]
    assert row["mean_of_last_ten"] == pytest.approx(sum(row["accuracy"]) / len(row["accuracy"]), abs=1e-5)
    assert row["recipe"] == next(c.hash for c in table("fedsol-table1", "tiny").cells if c.id == row["cell"])
    assert row["seconds"]["total"] >= row["seconds"]["rounds"] > 0
    assert {"hardware", "versions", "commit", "cost", "partition", "peak_gpu_mib", "tf32"} <= set(row)
    assert "data_folder" not in config  # whose machine it was is nobody's business
    again = steppe(*ONE)
    assert (again.code, again.err, RESULTS.read_text()) == (0, "", before)
    more = steppe(*ONE, "--seeds", "2")
    assert (more.code, [r["seed"] for r in rows.read(RESULTS)]) == (0, [0, 1])
    assert rows.read(RESULTS)[1]["accuracy"] != row["accuracy"]


def test_four_files_that_agree(steppe):
    assert steppe(*ONE).code == 0
    ours = f"{100 * rows.read(RESULTS)[0]['mean_of_last_ten']:.2f}"
    texts = {kind: Path(f"out/fedsol-table1.{kind}").read_text() for kind in ("md", "tex", "html", "json")}
    assert all(ours in text for kind, text in texts.items() if kind != "json")
    facts = next(c for c in json.loads(texts["json"])["cells"] if c["seeds"])
    assert f"{facts['ours']:.2f}" == ours
    assert "tiny scale" in texts["md"]
    assert "51.48 ± 3.41" in texts["md"]
    assert r"\toprule" in texts["tex"]
    assert "<script" not in texts["html"]


@pytest.mark.slow
def test_several_processes_find_the_same(steppe):
    cells = ("--cells", "cifar10/sharding-2/fedavg", "--cells", "cifar10/lda-0.5/fedsam")
    words = ("reproduce", "fedsol-table1", "--scale", "tiny", *cells)
    here, apart = steppe(*words, "--out", "here"), steppe(*words, "--out", "apart", "--jobs", "2")
    assert (here.code, apart.code) == (0, 0), here.err + apart.err
    found = [{r["recipe"]: r["accuracy"] for r in rows.read(Path(place) / "results/fedsol-table1.jsonl")}
             for place in ("here", "apart")]  # fmt: skip
    assert len(found[0]) == 2
    assert found[0] == found[1]


def test_a_budget_that_is_spent_runs_nothing(steppe):
    said = steppe(*ONE, "--budget", "0")
    assert said.code == 0
    assert "1 runs were not made" in said.err
    assert not RESULTS.exists()
    assert "not run" in Path("out/fedsol-table1.md").read_text()


def test_time_that_ends_inside_a_run_leaves_no_row():
    (job,) = missing_runs.needed(["fedsol-table1"], "tiny", ["cifar10/lda-0.1/fedavg"], 1, False, [], {})
    kept = []

    def ended(who, seconds, event):
        kept.append(event)
        board.finish(who, seconds, event is not None)

    class Over(work.Board):
        left = property(lambda self: 1.0 if self.waiting else 0.0)

    board = Over([job], time.monotonic(), 1000.0)
    work._here(board, ended, print)
    assert (kept, board.skipped, board.done) == ([None], [job], 0)


def test_what_is_running_is_told(monkeypatch):
    (job,) = missing_runs.needed(["fedsol-table1"], "paper", ["cifar10/lda-0.1/fedavg"], 1, False, [], {})
    board, said = work.Board([job], time.monotonic(), None), []
    board.take(3, "")
    board.tick(3, 7, said.append)
    assert said == []  # not yet
    monkeypatch.setattr(work, "TICK", -1.0)
    board.tick(3, 8, said.append)
    assert said == ["running: fedsol-table1 cifar10/lda-0.1/fedavg, seed 0, round 8 of 300"]


def test_a_process_stays_with_its_algorithm():
    jobs = missing_runs.needed(["fedsol-table1", "fedsol-table6"], "paper", ["cifar10/*"], 2, False, [], {})
    assert len(jobs) == 2 * (48 + 5)  # A0 and A1 are cells of table 1
    board = work.Board(list(jobs), time.monotonic(), None)
    first = board.take(0, "")
    assert (first.config.algorithm, first.config.partition) == ("fedsam", "lda(0.05)")  # the longest of all
    assert {c.table for j in jobs for c in j.cells if j.key == first.key} == {"fedsol-table1"}
    second = board.take(1, "")
    assert second.group != first.group
    board.finish(0, 100.0, True)
    third = board.take(0, first.group)
    assert (third.group, third.stage) == (first.group, (0, 0))
    stages = [third.stage]
    while job := board.take(2, ""):
        stages.append(job.stage)
    assert stages == sorted(stages)  # table by table, and second seeds after everybody's first
    assert stages[-1] == (1, 1)


def test_nothing_is_started_that_would_not_end_in_time():
    jobs = missing_runs.needed(["fedsol-table1"], "paper", ["cifar10/lda-0.1/*"], 1, False, [], {})
    board = work.Board(list(jobs), time.monotonic(), 1000.0)
    board.take(0, "")
    board.finish(0, 10_000.0, True)  # one took far longer than all the time there is
    assert board.take(0, "") is None
    assert len(board.waiting) == len(jobs) - 1


def test_cells_that_share_a_run_are_looked_at_together():
    jobs = missing_runs.needed(["fedsol-table1", "fedsol-table5"], "paper",
                               ["cifar10/lda-0.1/fedavg", "cifar10/fedavg-*"], 1,
                               False, [], {"device": "cpu"})  # fmt: skip
    (job,) = jobs
    assert ([c.id for c in job.cells], job.config.personal, job.config.device) == (
        ["cifar10/lda-0.1/fedavg", "cifar10/fedavg-1", "cifar10/fedavg-5"], [1, 5], "cpu")  # fmt: skip


def test_list_and_dry_run(steppe):
    listed = json.loads(steppe("reproduce", "list", "--json").out)
    assert [t["table"] for t in listed] == recipes.names()
    dry = steppe("reproduce", "fedsol-table1", "--cells", "cifar10/lda-0.1/*", "--dry-run")
    assert (dry.code, len(dry.out.splitlines())) == (0, 8)
    assert "fedsol-table1" in steppe("reproduce", "list").out


def test_list_counts_what_a_table_has(steppe, monkeypatch, tmp_path):
    """Table 5 shares runs with Table 1, which were not fine-tuned; costs need no run."""
    monkeypatch.chdir(HOME)

    def listed(*options):
        return {t["table"]: t["run"] for t in json.loads(steppe("reproduce", "list", "--json", *options).out)}

    told = {name: json.loads((HOME / f"docs/reproductions/{name}.json").read_text())["cells"]
            for name in ("fedsol-table1", "fedsol-table5", "fedsol-table7", "fedscar-costs")}  # fmt: skip
    for name, cells in told.items():
        assert listed()[name] == sum(bool(c["seeds"]) for c in cells if "tried_for" not in c), name
    assert listed()["fedsol-table8"] == 13
    dry = steppe("reproduce", "fedsol-table8", "--dry-run", "--device", "cuda")
    assert (dry.code, dry.out) == (0, "nothing is missing\n")
    (tmp_path / "fedsol-table1.jsonl").write_text((HOME / "results/fedsol-table1.jsonl").read_text())
    monkeypatch.chdir(tmp_path)
    alone = listed("--results", str(tmp_path))
    # FedSoL at α = 0.1 was run for Table 8, whose rows are not here.
    assert (alone["fedsol-table1"], alone["fedsol-table5"], alone["fedscar-costs"]) == (47, 0, 12)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("fedsol-table11",), "fedsol-table1"),
        (("fedsol-table1", "--cells", "cifar10/lda-0.2/*"), "no cell matches"),
        (("fedsol-table1", "--scale", "huge"), "there is no such scale"),
        (("league", "fedsol-table1"), "command of its own"),
        (("league", "--cells", "lda-0.1/fedsan"), "lda-0.1/fedsam"),
        (("league", "--scale", "tinny", "--dry-run"), "did you mean 'tiny'"),
        (("leage",), "did you mean 'league'"),
        (("check", "fedsol-table1"), "command of its own"),
        (("fedsol-table1", "--scale", "tiny", "--device", "gpu"), "did you mean 'cpu'"),
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


def test_a_small_league(steppe):
    words = ("reproduce", "league", "--scale", "tiny", "--cells", "lda-0.1/fedprox", "--out", "out")
    said = steppe(*words, "--json")
    assert said.code == 0, said.err
    line = next(e for e in json.loads(said.out)["tables"]["league"] if e["accuracy"] is not None)
    assert (line["method"], line["column"], len(line["tuned"])) == ("fedprox", "lda-0.1", 3)
    assert line["tuned"][line["chosen"]] == max(line["tuned"].values())
    assert line["trace"] is not None
    made = rows.read(Path("out/results/league.jsonl"))
    assert sorted("validation" in r for r in made) == [False, True, True, True]
    page = Path("out/league.md").read_text()
    assert f"{line['accuracy']:.2f}" in page
    assert steppe(*words).err == ""  # nothing was left to run


WORKER = """
import json, sys, time
for line in sys.stdin:
    config = json.loads(line)
    if config["algorithm"] == "fedsam":
        sys.exit(7)
    if config["algorithm"] == "fedsol":
        time.sleep(600)
    print(json.dumps({"round": 1}), flush=True)
    wrong = {"error": "ValueError: odd", "trace": "Traceback"}
    print(json.dumps(wrong if config["algorithm"] == "fedprox" else {"row": {"mean_of_last_ten": 0.5}}), flush=True)
"""


def with_fake_workers(monkeypatch, methods, started=None):
    """What was kept, what was not run, what failed, and the processes."""
    started, kept = [] if started is None else started, []

    def start(_):
        pipe = subprocess.PIPE
        started.append(subprocess.Popen([sys.executable, "-c", WORKER], stdin=pipe, stdout=pipe, encoding="utf-8"))
        return started[-1]

    monkeypatch.setattr(work, "_start", start)
    cells = [f"cifar10/lda-0.1/{m}" if "/" not in m else m for m in methods]
    jobs = missing_runs.needed(["fedsol-table1"], "paper", cells, 1, False, [], {})
    not_run, failed = work.work(jobs, 2, None, lambda j, row: kept.append(j.config.algorithm), lambda _: None)
    return sorted(kept), [j.config.algorithm for j in not_run], failed, started


def test_a_process_that_dies_takes_one_cell_with_it(monkeypatch):
    kept, not_run, failed, started = with_fake_workers(
        monkeypatch, ["fedavg", "fedsam", "fedprox", "fedntd", "fedasam"]
    )
    assert (kept, not_run) == (["fedasam", "fedavg", "fedntd"], [])
    assert sorted(failed.values()) == ["ValueError: odd", "its process ended with code 7"]
    assert all(child.poll() is not None for child in started)


def test_when_time_is_up_what_runs_is_stopped_and_not_run(monkeypatch):
    over = property(lambda board: 0.0 if board.done else 60.0)  # time ends with the first run
    monkeypatch.setattr(work.Board, "left", over)
    kept, not_run, failed, started = with_fake_workers(monkeypatch, ["fedavg", "fedsol"])
    assert (kept, not_run, failed) == (["fedavg"], ["fedsol"], {})
    assert all(child.poll() is not None for child in started)


def test_an_interrupt_leaves_no_process_behind(monkeypatch):
    """Ctrl-C comes to the main thread; the others must not go on with the next cell."""

    def left(board):
        if board.running and threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return 60.0

    monkeypatch.setattr(work.Board, "left", property(left))
    started = []
    with pytest.raises(KeyboardInterrupt):
        with_fake_workers(monkeypatch, ["cifar10/*/fedsol"], started)  # six that take ten minutes each
    assert 1 <= len(started) <= 2
    assert all(child.poll() is not None for child in started)
    assert not [t for t in threading.enumerate() if t.name.endswith("(serve)")]
