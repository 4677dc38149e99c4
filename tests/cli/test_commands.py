"""Every command, its JSON, its tables, and how settings from several places come together."""

from __future__ import annotations

import json
import os
import pty
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import steppe as api
from tests.cli.conftest import Steppe
from tests.scene import records

QUICK = ("-s", "model=mlp", "-s", "clients=4", "-s", "per_round=2", "-s", "epochs=1", "-s", "max_steps=2",
         "-s", "workers=0")  # fmt: skip
COMMAND = [sys.executable, "-m", "steppe"]
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}
VECTORS = json.loads((Path(__file__).parents[1] / "vectors/quadratic.json").read_text())


def ok(steppe: Steppe, *words: Any) -> str:
    said = steppe(*words)
    assert said.code == 0, said.err
    return said.out


# --- starting


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["--version"]])
def test_help_does_not_wait_for_torch(words: list[str]) -> None:
    """Nor for numpy or matplotlib: it answers at once."""
    code = f"""
import sys
sys.argv = ["steppe", *{words!r}]
from steppe.cli.app import main
try:
    main()
finally:
    heavy = {{"torch", "numpy", "matplotlib", "safetensors"}} & set(sys.modules)
    print("heavy:", sorted(heavy))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "heavy: []" in done.stdout


def test_list(steppe: Steppe) -> None:
    found = json.loads(ok(steppe, "list", "--json"))
    assert {"algorithms", "parts", "data", "partitions", "models"} <= set(found)
    names = {"fedavg", "fedprox", "fedsam", "fedasam", "scaffold", "feddyn"}
    names |= {"fedadam", "fedyogi", "fedadagrad", "fedavgm"}
    assert names <= set(found["algorithms"])
    assert found["algorithms"]["fedsam"]["settings"]["rho"] == 0.1
    assert {"digits", "mnist", "cifar10"} <= set(found["data"])
    assert found["keys"]["weighting"]["choices"] == {"default": ["samples", "uniform"]}
    assert {"folder:PATH", "hub:NAME"} <= set(found["data"])
    text = ok(steppe, "list")
    assert all(name in text for kind in found.values() for name in kind)
    assert json.loads(ok(steppe, "list", "algorithms", "--json")) == {"algorithms": found["algorithms"]}
    assert set(json.loads(ok(steppe, "list", "partitions", "dirichlet", "--json"))["partitions"]) == {
        "lda", "dirichlet", "dirichlet_replace", "dirichlet_once"}  # fmt: skip
    assert "did you mean fedsam" in steppe("list", "fedsamm").err
    assert "did you mean losses or loss?" in steppe("list", "lossez").err
    for kind, name in (("losses", "cross_entropy"), ("metrics", "perplexity")):
        assert name in json.loads(steppe("list", kind, "--json").out)[kind]
    assert "@software{steppe" in ok(steppe, "cite", "steppe")


def test_the_list_fits_the_terminal() -> None:
    shown = on_a_terminal(80, "list").splitlines()
    assert len(shown) > 100
    assert max(map(len, shown)) <= 80
    assert "…" not in "".join(line for line in shown if "data_batch_1" not in line)


# --- run, and where settings come from


def test_run_writes_everything_and_speaks_json(steppe: Steppe) -> None:
    said = steppe("run", "fedsam", *QUICK, "--rounds", "2", "--out", "here", "--json")
    told = json.loads(said.out)
    assert said.code == 0
    assert "round 2/2" in said.err  # progress, beside the JSON
    assert told["folder"] == "here"
    assert told["rounds"] == 2
    for name in ("config.json", "about.json", "versions.json", "partition.json", "rounds.jsonl", "rounds.csv",
                 "model.safetensors", "result.json", "curves.png"):  # fmt: skip
        assert (Path("here") / name).is_file(), name
    assert json.loads(Path("here/result.json").read_text())["last"] == told["last"]


def test_precedence(steppe: Steppe) -> None:
    """Defaults, then the recipe, then the file, then the command line."""
    Path("mine.toml").write_text(
        'algorithm = "fedsam"\nrecipe = "fedsmoo"\nlr = 0.3\nbatch = 7\n[settings]\nrho = 0.4\n'
    )
    ok(steppe, "run", "--config", "mine.toml", *QUICK, "-s", "batch=9", "-s", "eps=0", "--rounds", "1", "--out", "a")
    config = json.loads(Path("a/config.json").read_text())
    assert config["settings"] == {"rho": 0.4, "eps": 0}
    assert (config["batch"], config["lr"], config["clip"], config["rounds"]) == (9, 0.3, 10.0, 1)
    assert (config["sampling"], config["seed"]) == ("bernoulli", 0)
    ok(steppe, "run", "--config", "mine.toml", *QUICK, "-s", "rho=0.5", "--rounds", "1", "--out", "b")
    assert json.loads(Path("b/config.json").read_text())["settings"] == {"rho": 0.5}
    ok(steppe, "run", "fedavg", "--config", "mine.toml", *QUICK, "--rounds", "1", "--out", "c")
    other = json.loads(Path("c/config.json").read_text())
    assert (other["algorithm"], other["settings"], other["lr"]) == ("fedavg", {}, 0.3)  # rho was meant for FedSAM
    ok(steppe, "run", "fedsam", *QUICK, "-s", "settings={rho=0.2}", "-s", "clip=none", "--rounds", "1", "--out", "d")
    assert json.loads(Path("d/config.json").read_text())["settings"] == {"rho": 0.2}


def test_every_key_is_an_option(steppe: Steppe) -> None:
    words = ("--lr", "0.3", "--per-round=2", "--clients", "4", "--model", "mlp", "--max-steps", "1", "--rho", "0.2",
             "--clip", "none", "--workers", "0", "--rounds", "1", "--out", "a")  # fmt: skip
    ok(steppe, "run", "--seed", "3", "fedsam", *words)
    config = json.loads(Path("a/config.json").read_text())
    assert (config["lr"], config["per_round"], config["seed"], config["clip"]) == (0.3, 2, 3, None)
    assert config["settings"] == {"rho": 0.2}


def test_files_of_several_kinds(steppe: Steppe) -> None:
    """A setting of the algorithm beside the run's keys, and the configuration of a run."""
    Path("mine.toml").write_text('algorithm = "fedsam"\nrho = 0.4\nlr = 0.3\n')
    ok(steppe, "run", "--config", "mine.toml", *QUICK, "--rounds", "1", "--out", "a")
    first = json.loads(Path("a/config.json").read_text())
    assert (first["settings"], first["lr"]) == ({"rho": 0.4}, 0.3)
    ok(steppe, "run", "--config", "a/config.json", "--out", "b")
    assert json.loads(Path("b/config.json").read_text()) == first
    assert Path("a/model.safetensors").read_bytes() == Path("b/model.safetensors").read_bytes()


def test_a_file_may_need_the_command_line(steppe: Steppe) -> None:
    Path("mine.toml").write_text("per_round = 30\n")
    ok(steppe, "run", "--config", "mine.toml", "-s", "clients=60", "-s", "model=mlp", "-s", "max_steps=1",
       "-s", "partition=iid", "--rounds", "1", "--out", "run")  # fmt: skip


def test_without_a_folder_runs_get_one_each(steppe: Steppe) -> None:
    folders = [json.loads(ok(steppe, "run", "fedavg", *QUICK, "--rounds", "1", "--json"))["folder"] for _ in range(2)]
    assert len(set(folders)) == 2
    assert all(f.startswith("runs/fedavg-") for f in folders)


def test_no_rounds_and_no_epochs(steppe: Steppe) -> None:
    assert json.loads(ok(steppe, "run", "fedavg", *QUICK, "--rounds", "0", "--out", "a", "--json"))["rounds"] == 0
    ok(steppe, "run", "fedavg", *QUICK, "-s", "epochs=0", "--rounds", "1", "--out", "b")
    said = steppe("plot", "a")
    assert said.code == 2
    assert "nothing to draw" in said.err


def test_a_run_that_breaks_down_is_code_3(steppe: Steppe) -> None:
    said = steppe(
        "run", "fedavg", *QUICK, "-s", "lr=1e9", "-s", "epochs=3", "-s", "max_steps=9", "--rounds", "3", "--out", "a"
    )
    assert said.code == 3
    assert "not finite" in said.err
    assert "round 1" in said.err
    assert "client" in said.err
    assert "Traceback" not in said.err
    assert not Path("a/result.json").exists()


# --- resume


def test_resume(steppe: Steppe) -> None:
    start = ("run", "scaffold", *QUICK, "-s", "checkpoint_every=1")
    ok(steppe, *start, "--rounds", "3", "--out", "a")
    assert "already holds a run" in steppe(*start, "--rounds", "3", "--out", "a").err
    refused = steppe(*start, "-s", "lr=0.01", "--rounds", "3", "--out", "a", "--resume")
    assert refused.code == 2
    assert "lr was 0.05 and is 0.01" in refused.err
    assert "algorithm was 'scaffold' and is 'fedavg'" in steppe("run", "fedavg", *QUICK, "--resume", "--out", "a").err
    assert "already finished 3 rounds" in steppe("run", "--resume", "--rounds", "2", "--out", "a").err
    ok(steppe, "run", "--resume", "--rounds", "5", "--out", "a")  # more rounds, and nothing else needs to be said
    ok(steppe, *start, "--rounds", "6", "--resume", "--out", "a")  # or the whole command again
    ok(steppe, *start, "--rounds", "6", "--out", "b")
    assert records(Path("a")) == records(Path("b"))
    assert Path("a/model.safetensors").read_bytes() == Path("b/model.safetensors").read_bytes()


def test_a_damaged_checkpoint_is_told_also_beside_json(steppe: Steppe) -> None:
    ok(steppe, "run", "fedavg", *QUICK, "-s", "checkpoint_every=1", "--rounds", "3", "--out", "a")
    Path("a/checkpoints/round-000003/server.safetensors").write_bytes(b"torn")
    said = steppe("run", "--resume", "--out", "a", "--json")
    assert said.code == 0
    assert json.loads(said.out)["rounds"] == 3
    assert "round-000003 is damaged" in said.err
    assert "The earlier checkpoint of round 2 is used instead." in said.err


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["-s", "store=disk", "-s", "workers=2", "-s", "checkpoint_every=2"]])
def test_kill_9_and_resume_by_command(tmp_path: Path, more: list[str]) -> None:
    """Real processes, killed at no moment in particular."""
    start = [*COMMAND, "run", "scaffold", *QUICK, "-s", "max_steps=20", "-s", "checkpoint_every=1", *more]
    start += ["--rounds", "8"]
    whole, out = tmp_path / "whole", tmp_path / "out"
    subprocess.run([*start, "--out", whole], env=ONE_THREAD, check=True, capture_output=True)
    chance = random.Random(len(more))
    for attempt, rounds in enumerate((1, 4)):
        words = [*start, "--out", out] if attempt == 0 else [*COMMAND, "run", "--resume", "--out", out]
        process = subprocess.Popen(words, env=ONE_THREAD, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        lines = out / "rounds.jsonl"
        while process.poll() is None and (not lines.exists() or lines.read_text().count("\n") < rounds):
            time.sleep(0.005)
        time.sleep(chance.random() * 0.1)
        assert process.poll() is None  # killed, not finished
        process.kill()
        process.wait()
    subprocess.run([*COMMAND, "run", "--resume", "--out", out], env=ONE_THREAD, check=True, capture_output=True)
    assert records(out) == records(whole)
    assert (out / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_an_interrupt_says_how_to_go_on(tmp_path: Path) -> None:
    words = [*COMMAND, "run", "fedavg", *QUICK, "--rounds", "100000", "--out", "out"]
    process = subprocess.Popen(
        words, env=ONE_THREAD, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background shell ignores it
    )  # fmt: skip
    while process.poll() is None and not (tmp_path / "out/rounds.jsonl").exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "steppe run --resume --out out" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(("rounds", "said"), [
    (0, "not trained; the initial model has accuracy"), (1, " after 1 round, loss"),
    (3, "after 3 rounds (mean of the last 3 "), (10, "after 10 rounds (mean of the last ten "),
])  # fmt: skip
def test_a_run_says_what_its_mean_covers(steppe: Steppe, rounds: int, said: str) -> None:
    out = ok(steppe, "run", "fedavg", *QUICK, "--rounds", rounds, "--out", "a")
    assert said in out
    assert ("best" in out) == (rounds > 1)


# --- compare, cost, plot, partition, trace


def test_a_name_with_settings_and_parts(steppe: Steppe) -> None:
    ok(steppe, "run", "fedsam:rho=0.5+man:weight=0.2", *QUICK, "--add", "ema", "--rounds", "1", "--out", "a")
    config = json.loads(Path("a/config.json").read_text())
    assert (config["algorithm"], config["settings"]["rho"]) == ("fedsam", 0.5)
    assert config["add"] == ["man:weight=0.2", "ema"]
    words = ("sweep", "fedsam:rho=0.5+man", "--grid", "lr=0.01", *QUICK, "--rounds", "1", "--jobs", "1", "--out", "b")
    ok(steppe, *words)
    (run,) = Path("b").rglob("config.json")
    config = json.loads(run.read_text())
    assert (config["settings"]["rho"], config["add"], config["lr"]) == (0.5, ["man"], 0.01)


def test_a_run_that_diverged_is_a_failed_one_of_a_comparison(steppe: Steppe) -> None:
    """A loss that is not a number is null on disk; such a run is no result, the first time and every time."""
    words = ("compare", "fedavg", "fedsam", *QUICK, "--rounds", "1", "--measures", "none", "--out", "cmp")
    ok(steppe, *words)
    result = Path("cmp/fedsam/seed-0/result.json")
    result.write_text(json.dumps({**json.loads(result.read_text()), "loss": None}))
    said = steppe(*words)
    assert said.code == 3
    assert "failed: fedsam, seed 0: The loss of the final model is not finite" in said.err
    assert [line["algorithm"] for line in json.loads(Path("cmp/comparison.json").read_text())["lines"]] == ["fedavg"]


def test_compare(steppe: Steppe) -> None:
    names = ("fedavg", "fedsam:rho=0.5+ema", "scaffold")
    words = ("compare", *names, *QUICK, "--rounds", "2", "--seeds", "2", "--out", "cmp", "--samples", "100")
    told = json.loads(ok(steppe, *words, "--json"))
    assert [line["algorithm"] for line in told["lines"]] == list(names)
    runs = [json.loads(Path(f"cmp/fedavg/seed-{s}/result.json").read_text())["last"] for s in (0, 1)]
    mean, deviation = told["lines"][0]["last"]
    assert mean == pytest.approx(sum(runs) / 2)
    assert deviation == pytest.approx(abs(runs[0] - runs[1]) / 2**0.5)
    assert Path("cmp/curves.png").is_file()
    assert json.loads(Path("cmp/comparison.json").read_text())["lines"] == told["lines"]
    config = json.loads(Path("cmp/fedsam:rho=0.5+ema/seed-1/config.json").read_text())
    assert (config["settings"], config["add"], config["seed"]) == ({"rho": 0.5}, ["ema"], 1)

    again = steppe(*words)  # nothing is run twice
    assert again.err.count("already finished") == 6
    assert all(name in again.out for name in names)
    ok(steppe, "plot", "cmp", "--out", "all.svg")
    assert "fedsam:rho=0.5+ema" in Path("all.svg").read_text()


def test_python_leaves_the_same_files(steppe: Steppe) -> None:
    keys: dict[str, Any] = {"clients": 4, "per_round": 2, "rounds": 2, "model": "mlp", "workers": 0}
    words = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
    ok(steppe, "compare", "fedavg", "fedsam", "--seeds", "2", "--measures", "none", *words, "--out", "theirs")
    api.compare(["fedavg", "fedsam"], seeds=2, out="ours", progress=False, **keys)
    ok(steppe, "sweep", "fedsam", "--grid", "rho=0.1,0.2", "--jobs", "1", *words, "--out", "their-sweep")
    api.sweep("fedsam", {"rho": [0.1, 0.2]}, out="our-sweep", progress=False, **keys)
    for theirs, ours in (("theirs", "ours"), ("their-sweep", "our-sweep")):
        assert {p.name for p in Path(theirs).iterdir()} == {p.name for p in Path(ours).iterdir()}
    told = [re.sub(r'"seconds": (\[.*?\]|[^,]*),|"folder".*', "", Path(name).read_text(), flags=re.DOTALL)
            for name in ("theirs/comparison.json", "ours/comparison.json")]  # fmt: skip
    assert told[0] == told[1]


def test_a_comparison_goes_on_where_it_stopped(steppe: Steppe) -> None:
    words = ("compare", "fedavg", *QUICK, "-s", "checkpoint_every=1", "--rounds", "3", "--out", "cmp", "--json",
             "--measures", "none")  # fmt: skip
    first = json.loads(ok(steppe, *words))["lines"]
    Path("cmp/fedavg/seed-0/result.json").unlink()
    said = steppe(*words)
    assert "round 1/3" not in said.err  # its last checkpoint is of round 3
    second = json.loads(said.out)["lines"]
    assert second[0]["last"] == first[0]["last"]
    longer = json.loads(ok(steppe, *words, "--rounds", "4"))["lines"]  # another protocol: begun anew
    assert longer != second
    assert json.loads(Path("cmp/fedavg/seed-0/result.json").read_text())["rounds"] == 4


def test_one_failure_does_not_stop_a_comparison(steppe: Steppe) -> None:
    said = steppe(
        "compare", "fedavg:lr=1e9", "fedavg", *QUICK, "-s", "max_steps=20", "--rounds", "2", "--out", "cmp", "--json",
        "--measures", "none",
    )  # fmt: skip
    assert said.code == 3
    told = json.loads(said.out)
    assert [line["algorithm"] for line in told["lines"]] == ["fedavg"]
    assert "not finite" in told["failed"]["fedavg:lr=1e9"]["0"]
    assert "failed: fedavg:lr=1e9" in said.err


def test_cost(steppe: Steppe) -> None:
    told = json.loads(ok(steppe, "cost", "scaffold", "--model", "mlp", "--shape", "1x28x28", "--json"))
    (row,) = told["rows"]
    assert told["parameters"] == 199_210
    assert (row["down"], row["up"], row["kept"], row["gradients"], row["bytes_x"]) == (2, 2, 1, 1, 2)
    assert row["bytes_up"] == 2 * 4 * 199_210
    sam = json.loads(ok(steppe, "cost", "fedsam", "--model", "mlp", "--json"))["rows"][0]
    assert (sam["gradients"], sam["flops_x"]) == (2, 2)
    for words in (("--set", "model=mlp"), ("--set", "batch=5"), ("--set", "data=digits")):
        said = steppe("cost", "fedavg", *words)
        name, _, value = words[1].partition("=")
        assert said.code == 2
        assert f"{name} decides on what costs are traced, for all algorithms: write --{name} {value}" in said.err
    several = ok(steppe, "cost", "fedavg", "fedsam", "scaffold+sam:rho=0.1", "--rho", "0.3", "--model", "mlp", "--json")
    assert [r["algorithm"] for r in json.loads(several)["rows"]] == ["fedavg", "fedsam", "scaffold+sam:rho=0.1"]


def on_a_terminal(columns: int, *words: str) -> str:
    """What a command prints on a terminal of this width."""
    parent, child = pty.openpty()
    code = (f"import sys; sys.argv = ['steppe', *{list(words)!r}]; "
            "from steppe.cli.app import main; main()")  # fmt: skip
    environment = {**ONE_THREAD, "COLUMNS": str(columns), "TERM": "dumb"}
    process = subprocess.Popen([sys.executable, "-c", code], stdout=child, stderr=subprocess.DEVNULL, env=environment)
    os.close(child)
    text = b""
    while True:
        try:
            piece = os.read(parent, 65536)
        except OSError:  # the other side is gone
            break
        if not piece:
            break
        text += piece
    os.close(parent)
    assert process.wait() == 0
    return text.decode()


def test_tables_never_cut_a_name(steppe: Steppe) -> None:
    names = json.loads(ok(steppe, "list", "--json"))["algorithms"]
    longest = sorted(names, key=len)[-5:]
    piped = ok(steppe, "cost", "--all", "--model", "mlp", "--shape", "1x8x8")
    shown = on_a_terminal(80, "cost", *longest, "--model", "mlp", "--shape", "1x8x8")
    for text, names in ((piped, names), (shown, longest)):  # noqa: B020
        first = [line.split()[0] for line in text.splitlines() if line.strip()]
        assert set(names) <= set(first)
        assert "…" not in text
    assert max(map(len, shown.splitlines())) <= 80  # the legend, too


@pytest.mark.slow
def test_a_comparison_fits_on_a_terminal(tmp_path: Path) -> None:
    label = "fedsam:rho=0.5,eps=0+man:weight=0.1"
    shown = on_a_terminal(
        80, "compare", "fedavg", label, *QUICK, "--rounds", "1", "--seeds", "2", "--out", str(tmp_path / "c")
    )
    line = next(line for line in shown.splitlines() if line.startswith(label))
    assert len(line.rstrip()) <= 80
    assert "±" in line
    assert "…" not in shown


def test_plots_keep_runs_of_one_name_apart(steppe: Steppe) -> None:
    for home in ("a", "b"):
        ok(steppe, "run", "fedavg", *QUICK, "--rounds", "1", "--out", f"{home}/mine")
    ok(steppe, "plot", "a/mine", "b/mine", "--out", "both.svg")
    picture = Path("both.svg").read_text()
    assert "b/mine" in picture
    assert "both.doc" in steppe("plot", "a/mine", "--out", "both.doc").err


def test_partition(steppe: Steppe) -> None:
    words = ("partition", "--partition", "lda(0.1)", "--clients", "7")
    told = json.loads(ok(steppe, *words, "--save", "split.json", "--plot", "split.png", "--json"))
    assert len(told["sizes"]) == 7
    assert Path("split.png").stat().st_size > 1000
    assert told["hash"] in ok(steppe, *words)
    other = json.loads(ok(steppe, *words, "--seed", "5", "--json"))
    assert other["hash"] != told["hash"]
    small = ("-s", "clients=7", "-s", "per_round=2", "-s", "model=mlp", "-s", "max_steps=1", "--rounds", "1")
    ok(steppe, "run", "fedavg", *small, "-s", "partition=split.json", "--out", "run")
    assert json.loads(Path("run/about.json").read_text())["partition"]["hash"] == told["hash"]
    ok(steppe, "run", "fedavg", *small, "-s", "validation=0.4", "--out", "held")  # its file says which are held out
    shown = json.loads(ok(steppe, "partition", "--partition", "held/partition.json", "--json"))
    assert shown["hash"] == json.loads(Path("held/about.json").read_text())["partition"]["hash"]


@pytest.mark.parametrize("algorithm", ["scaffold", "fedsam"])
def test_trace(steppe: Steppe, algorithm: str) -> None:
    case = next(c for c in VECTORS["cases"] if c["algorithm"] == algorithm)
    Path("problem.json").write_text(json.dumps({**VECTORS["problems"][case["problem"]], **case.get("change", {})}))
    sets = [word for key, value in case["settings"].items() for word in ("-s", f"{key}={value}")]
    rounds = json.loads(ok(steppe, "trace", algorithm, "--problem", "problem.json", *sets))["rounds"]
    for ours, theirs in zip(rounds, case["x"], strict=True):
        assert ours["x"] == pytest.approx(theirs, abs=1e-8)
        assert {"x", "server", "clients"} <= set(ours)
    if algorithm == "scaffold":
        assert set(rounds[-1]["server"]["control_variates"]) == {"c"}


def test_a_loss_that_is_not_finite_is_no_success(steppe: Steppe) -> None:
    """The weights are finite, and the loss overflows: exit code 3, and JSON that any program can read."""
    words = ["run", "fedavg", "--model", "mlp", "--rounds", "1", "--clients", "3", "--per_round", "2", "--workers", "0",
             "--max_steps", "2", "--lr", "1e9", "--out", "diverged"]  # fmt: skip
    said = steppe(*words, "--json")
    assert said.code == 3
    assert "The loss of the final model is not finite" in said.err
    assert json.loads(said.out, parse_constant=lambda name: pytest.fail(name))["loss"] is None


def test_cost_fills_in_what_a_part_needs_of_a_run(steppe: Steppe) -> None:
    said = steppe("cost", "fedavg+swa", "--model", "mlp", "--json")
    assert said.code == 0, said.err
    assert json.loads(said.out)["rows"][0]["up"] == 1
