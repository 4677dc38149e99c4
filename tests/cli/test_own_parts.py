"""Parts and algorithms of the user's own, by file, module and entry point, in every command."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from steppe import references
from tests.cli.conftest import Steppe

LOOKBACK = (
    (Path(__file__).parents[1] / "lookback.py").read_text()
    + """
from functools import partial


@dataclass(frozen=True)
class Eager(LookBack):
    name = "eager"
    much: int = None
    def __init__(self, much): object.__setattr__(self, "rho", 0.1 * much)


def failing(rho=0.1):
    return LookBack(rho / 0)


def leaves():
    raise SystemExit(3)


def returns_nothing():
    LookBack(0.1)


halved = partial(mine, rho=0.7)
whole = steppe.Algorithm((LookBack(0.3),), "whole")
pair = (SAM(0.1), LookBack(0.1))
"""
)
FAILS = LOOKBACK.partition("rho / 0")[0].count("\n") + 1  # the line
SMALL = ["--model", "mlp", "--partition", "iid", "--clients", "4", "--per-round", "2", "--epochs", "1", "--batch",
         "200", "--workers", "0", "--rounds", "1"]  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path: Path) -> Iterator[None]:
    """A file of the user's own, and a package around the same; imports leave no trace."""
    (tmp_path / "lookback.py").write_text(LOOKBACK)
    (tmp_path / "ideas_of_mine").mkdir()
    (tmp_path / "ideas_of_mine" / "back.py").write_text(LOOKBACK)
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith(("ideas_of_mine", "lookback")):
            del sys.modules[name]


def test_a_part_in_a_file_runs_and_is_recorded_and_resumed_only_if_it_is_the_same(steppe: Steppe) -> None:
    said = steppe("run", "fedsam", "--add", "lookback.py:LookBack:rho=0.1", "--out", "a", *SMALL)
    assert said.code == 0, said.err
    assert "fedsam+look_back" in said.out
    about, config = (json.loads(Path(f"a/{name}.json").read_text()) for name in ("about", "config"))
    assert config["add"] == ["lookback.py:LookBack:rho=0.1"]
    assert [(p["part"], p.get("rho")) for p in about["parts"]][:2] == [("look_back", 0.1), ("sam", 0.1)]
    source = about["sources"]["lookback.py:LookBack"]
    assert source["file"] == str(Path("lookback.py").resolve())
    assert source["sha256"] == references.hash_file(Path("lookback.py"))
    by_module = ["--add", "ideas_of_mine.back:LookBack:rho=0.1", "--out", "b", *SMALL]
    assert steppe("run", "fedsam", *by_module).code == 0
    same = [(Path(name) / "model.safetensors").read_bytes() for name in "ab"]
    assert same[0] == same[1]
    Path("mine.toml").write_text('algorithm = "fedsam+lookback.py:LookBack:rho=0.1"\n')
    assert steppe("run", "-c", "mine.toml", "--out", "c", *SMALL).code == 0
    assert (Path("c") / "model.safetensors").read_bytes() == same[0]
    assert steppe("run", "--resume", "--out", "a", "--rounds", "2").code == 0
    said = steppe("analyze", "a", "-m", "lambda1", "--samples", "20")
    assert said.code == 0, said.err
    assert steppe("report", "a", "b", "--out", "r.md").code == 0
    page = Path("r.md").read_text()
    assert "steppe run fedsam --add lookback.py:LookBack:rho=0.1" in page
    assert page.startswith("# fedsam+look\\_back leads")

    Path("lookback.py").write_text(LOOKBACK + "# another file\n")
    said = steppe("run", "--resume", "--out", "a", "--rounds", "3")
    assert said.code == 2
    assert "the code of lookback.py:LookBack" in said.err
    assert "is not what it was" in said.err
    assert "is not what it was" in steppe("analyze", "a", "-m", "trace", "--samples", "20").err
    assert steppe("report", "a", "--out", "r.md").code == 0
    page = Path("r.md").read_text()
    assert "missing or has changed" in page
    assert "steppe run fedsam" not in page


def test_an_algorithm_in_a_file_works_in_compare_sweep_cost_and_trace(steppe: Steppe) -> None:
    said = steppe("compare", "lookback.py:mine:rho=0.3+ema", "ideas_of_mine.back:whole", "lookback.py:LookBack",
                  "--measures", "none", "--out", "c", "--json", *SMALL)  # fmt: skip
    assert said.code == 0, said.err
    assert json.loads(said.out)["lines"][0]["algorithm"] == "lookback.py:mine:rho=0.3+ema"
    assert sorted(p.name for p in Path("c").iterdir() if p.is_dir()) == [
        "ideas_of_mine.back:whole", "lookback.py:LookBack", "lookback.py:mine:rho=0.3+ema"]  # fmt: skip
    Path("lookback.py").write_text(LOOKBACK.replace("0.5", "0.25"))
    said = steppe("compare", "lookback.py:LookBack", "--measures", "none", "--out", "c", *SMALL)
    assert "holds a run with other settings: the code of lookback.py:LookBack" in said.err
    said = steppe("compare", "fedavg", "fedsam:rho=0.2", "--add", "lookback.py:LookBack:rho=0.1", "--measures", "none",
                  "--out", "d", "--json", *SMALL)  # fmt: skip
    rows = [one["algorithm"] for one in json.loads(said.out)["lines"]]
    assert rows == ["fedavg+look_back", "fedsam:rho=0.2+look_back"]
    about = json.loads(Path("d/fedavg+look_back/seed-0/about.json").read_text())
    assert (about["algorithm"], about["parts"][0]["rho"]) == ("fedavg+look_back", 0.1)
    said = steppe("sweep", "lookback.py:mine", "--grid", "rho=0.1,0.2", "--jobs", "1", "--out", "s", "--json", *SMALL)
    assert said.code == 0, said.err
    assert [p["settings"]["rho"] for p in json.loads(said.out)["points"]] == [0.1, 0.2]
    said = steppe("run", "lookback.py:halved", "--radius", "0.2", "--out", "h", *SMALL)
    assert said.code == 0, said.err
    assert json.loads(Path("h/about.json").read_text())["parts"][1]["rho"] == 0.7
    said = steppe("run", "lookback.py:returns_nothing", *SMALL)
    assert "algorithm 'lookback.py:returns_nothing' returns None, but must return a part" in said.err
    said = steppe("cost", "lookback.py:pair+man", "--model", "mlp", "--json")
    assert json.loads(said.out)["rows"][0]["gradients"] == 4
    problem = {"clients": [{"A": [[1.0]], "b": [1.0]}], "x0": [0.0], "rounds": [[0]], "steps": 2, "lr": 0.5}
    Path("p.json").write_text(json.dumps(problem))
    # Half of the gradient at the start, −1, and half of the one at w: 0 → 0.5 → 0.5 + 0.5·(0.75·0.5 + 0.25·1).
    said = steppe("trace", "lookback.py:LookBack", "--problem", "p.json")
    assert json.loads(said.out)["rounds"][0]["x"] == [pytest.approx(0.5 + 0.5 * (0.75 * 0.5 + 0.25))]


@pytest.mark.parametrize(("words", "sentence"), [
    (["--add", "nowhere.py:LookBack"], "there is no file 'nowhere.py'"),
    (["--add", "lookback.py:LookBak"], "lookback.py has no 'LookBak'; did you mean 'LookBack'"),
    (["--add", "lookback.py:steppe"], "lookback.py:steppe is <module"),
    (["--add", "lookback.py:dataclass"], "is not a part: give instances of steppe.Part"),
    (["--add", "lookback.py:Eager"], "part 'lookback.py:Eager' needs a value for much: write lookback.py:Eager:much=…"),
    (["--add", "lookback.py:LookBack:row=1"], "has no setting 'row'; did you mean 'rho'"),
    (["--add", "lookback.py:LookBack:rho=much"], "rho of part 'lookback.py:LookBack' must be a number"),
    (["--add", "lookback.py:mine"], "lookback.py:mine is 2 parts: add them one by one"),
    (["--add", "lookback.py:failing"], f"part 'lookback.py:failing' cannot be made: line {FAILS} of"),
    (["--add", "broken.py:LookBack"], "broken.py cannot be loaded: line 3 of"),
    (["--add", "unreadable.py:LookBack"], "unreadable.py cannot be loaded: line 1 of"),
    (["--add", "no.such.module:LookBack"], "there is no module 'no.such.module' here"),
    (["--add", "steppe_app.mine:LookBack"], "part of a federation's app: set PYTHONPATH to the folder app of"),
    (["--add", "failing_module:LookBack"], "ZeroDivisionError: division by zero"),
    (["--add", "man:weight"], "'weight' is not a setting: write it as key=value"),
    (["--add", "lookback.py:LookBack", "--add", "lookback.py:LookBack"], "two parts are named 'look_back'"),
    (["--add", "lookback"], "to name what a file defines, write lookback.py:NAME, with settings lookback.py:NAME:key="),
    (["--add", "ideas_of_mine.back.LookBack"], "to name what a module defines, write ideas_of_mine.back:LookBack"),
    (["--add", "lookback.py:LookBack(rho=0.1)"], "with settings lookback.py:NAME:key=value,key=value"),
    (["--add", "lookback.py:leaves"], "part 'lookback.py:leaves' cannot be made: line"),
])  # fmt: skip
def test_what_is_wrong_with_a_file_is_a_sentence(steppe: Steppe, words: list[str], sentence: str) -> None:
    Path("broken.py").write_text("import steppe\n\nsteppe.nothing_of_this_name\n")
    Path("unreadable.py").write_text("class (:\n")
    Path("failing_module.py").write_text("x = 1\ny = x / 0\n")
    said = steppe("run", "fedsam", *words, *SMALL)
    assert said.code == 2
    assert sentence in said.err
    assert not Path("runs").exists()


def test_installed_packages_register_names(steppe: Steppe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As pip leaves them: a module, and a dist-info folder with entry points."""
    (tmp_path / "ideas_of_mine-1.2.dist-info").mkdir()
    info = tmp_path / "ideas_of_mine-1.2.dist-info"
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ideas-of-mine\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(
        "[steppe.parts]\nlook_back = ideas_of_mine.back:LookBack\nlost = ideas_of_mine.gone:Lost\n"
        "[steppe.algorithms]\nmine = ideas_of_mine.back:mine\nfedavg = ideas_of_mine.back:mine\n"
    )
    monkeypatch.syspath_prepend(tmp_path)  # which forgets what was found there before
    references.list_installed.cache_clear()
    try:
        said = steppe("list", "parts", "look", "--json")
        assert json.loads(said.out)["parts"]["look_back"]["from"] == "ideas-of-mine 1.2, ideas_of_mine.back:LookBack"
        entries = json.loads(steppe("list", "algorithms", "--json").out)["algorithms"]
        assert entries["mine"]["settings"] == {"radius": 0.1, "rho": 0.2}
        assert "from" not in entries["fedavg"]  # a name of ours is ours
        assert "(from ideas-of-mine 1.2" in steppe("list", "parts", "look_back").out
        assert (
            "there is no module" in json.loads(steppe("list", "parts", "lost", "--json").out)["parts"]["lost"]["about"]
        )
        said = steppe("run", "mine+look_back:rho=0.1", *SMALL, "--out", "a")
        assert "two parts are named 'look_back'" in said.err
        said = steppe("run", "mine", "--rho", "0.1", *SMALL, "--out", "a")
        assert said.code == 0, said.err
        about = json.loads(Path("a/about.json").read_text())
        assert about["sources"]["mine"]["package"] == "ideas-of-mine 1.2"
        assert about["parts"][1]["rho"] == 0.1
        assert "did you mean 'mine'" in steppe("run", "minee").err
        (tmp_path / "others-1.dist-info").mkdir()
        (tmp_path / "others-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1\n")
        entries_of_others = tmp_path / "others-1.dist-info" / "entry_points.txt"
        entries_of_others.write_text("[steppe.algorithms]\nmine = others:mine\n")
        monkeypatch.syspath_prepend(tmp_path)
        references.list_installed.cache_clear()
        said = steppe("run", "mine", *SMALL, "--out", "b")
        assert "several packages register 'mine': write the one that you mean, " in said.err
        assert "ideas_of_mine.back:mine (of ideas-of-mine)" in said.err
    finally:
        references.list_installed.cache_clear()


def test_papers_of_own_parts_are_cited(steppe: Steppe) -> None:
    cited = LOOKBACK.replace('    name = "look_back"\n', '    name = "look_back"\n    citation = "@misc{look}"\n')
    Path("lookback.py").write_text(cited)
    assert steppe("cite", "lookback.py:LookBack").out == "@misc{look}\n"
    said = steppe("cite", "fedprox+lookback.py:LookBack:rho=0.2").out
    assert said.startswith("@inproceedings{fedprox,")
    assert said.endswith("@misc{look}\n")
    assert "@misc{look}" in steppe("cite", "lookback.py:mine:rho=0.2").out
    assert "is not from a paper" in steppe("cite", "ideas_of_mine.back:LookBack").out
    assert "needs a value for much" in steppe("cite", "lookback.py:Eager").err
