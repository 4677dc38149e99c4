"""steppe analyze, the laboratory's part of steppe compare, and steppe run --measure, as a user meets them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy import stats

from steppe.flatness import Landscape, free_memory
from tests.cli.conftest import Steppe
from tests.cli.test_commands import QUICK, ok, on_a_terminal

SMALL = ("--samples", "100")


@pytest.fixture(scope="module")
def _comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two algorithms, two seeds, one round."""
    import steppe

    home = tmp_path_factory.mktemp("lab") / "cmp"
    options: dict[str, Any] = {"model": "mlp", "clients": 4, "per_round": 2, "epochs": 1, "max_steps": 2, "workers": 0}
    for name in ("fedavg", "scaffold"):
        for seed in (0, 1):
            steppe.run(name, **options, rounds=1, seed=seed, out=home / name / f"seed-{seed}")
    return home


@pytest.fixture
def runs(_comparison: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    shutil.copytree(_comparison, tmp_path / "cmp")
    return tmp_path / "cmp"


def refused(steppe: Steppe, *words: Any) -> str:
    said = steppe(*words)
    assert said.code == 2, said
    assert said.err.splitlines()[-1].startswith("error: ") or "error: " in said.err
    assert "Traceback" not in said.err
    return said.err


# --- analyze


def test_analyze_a_comparison(steppe: Steppe, runs: Path) -> None:
    words = ("analyze", "cmp", *SMALL, "--measures", "lambda1,loss,consistency")
    told = json.loads(ok(steppe, *words, "--json"))
    assert told["failed"] == {}
    assert len(told["runs"]) == 4
    for place, content in told["runs"].items():
        assert content == json.loads((Path(place) / "analysis.json").read_text())
        assert content["sample"] == "digits/train, 100 class-balanced, seed 0"
        assert set(content["measures"]) == {"lambda1", "loss", "consistency"}
    again = steppe(*words)
    assert "lambda1," not in again.err  # nothing was computed
    for name in ("fedavg/seed-0", "scaffold/seed-1", "λ1/λ5", "consistency", "digits/train, 100 class-balanced"):
        assert name in again.out
    value = told["runs"]["cmp/fedavg/seed-0"]["measures"]["lambda1"]["lambda1"]
    line = next(line for line in again.out.splitlines() if line.startswith("fedavg/seed-0"))
    assert float(line.split()[1]) == pytest.approx(value, rel=0.01)
    one = ok(steppe, "analyze", "cmp/fedavg/seed-0", *SMALL, "--measures", "per_layer", "--landscape", "3")
    assert Path("cmp/fedavg/seed-0/analysis/landscape.npz").is_file()
    assert "head" in one


def test_lines_between_runs(steppe: Steppe, runs: Path) -> None:
    words = ("--measures", "line_runs", *SMALL, "--landscape", "3")
    assert "at least 2" in refused(steppe, "analyze", "cmp/fedavg/seed-0", *words)
    told = json.loads(ok(steppe, "analyze", "cmp/fedavg", *words, "--json"))["runs"]
    assert "line_runs" not in told["cmp/fedavg/seed-0"]["measures"]
    assert Path("cmp/fedavg/seed-1", told["cmp/fedavg/seed-1"]["measures"]["line_runs"]["file"]).is_file()


def test_a_plane_through_three_runs(steppe: Steppe, runs: Path) -> None:
    words = ("--measures", "plane_runs", *SMALL, "--json")
    assert "at least 3" in refused(steppe, "analyze", "cmp/fedavg", *words)
    ok(steppe, "run", "fedavg", *QUICK, "--rounds", "1", "-s", "seed=5", "--out", "third")
    told = json.loads(ok(steppe, "analyze", "cmp/fedavg", "third", *words))["runs"]
    assert list(told) == ["third"]  # the first two are what its plane goes through
    land = Landscape.load(Path("third", told["third"]["measures"]["plane_runs"]["file"]))
    assert list(land.marks) == ["fedavg/seed-0", "fedavg/seed-1", "this"]
    models = [torch.cat([t.flatten() for t in load_file(f"{name}/model.safetensors").values()])
              for name in ("cmp/fedavg/seed-0", "cmp/fedavg/seed-1", "third")]  # fmt: skip
    at = torch.tensor(list(land.marks.values()))
    for i, k in ((0, 1), (0, 2), (1, 2)):
        assert float((at[i] - at[k]).norm()) == pytest.approx(float((models[i] - models[k]).norm()), rel=1e-4)


def test_one_clients_loss(steppe: Steppe, runs: Path) -> None:
    words = ("analyze", "cmp/fedavg/seed-0", "--measures", "loss,gradient_norm", "--client")
    told = json.loads(ok(steppe, *words, "0,2", "--json"))["runs"]
    split = json.loads(Path("cmp/fedavg/seed-0/partition.json").read_text())["clients"]
    for i in (0, 2):
        content = told[f"cmp/fedavg/seed-0, client {i}"]
        assert content == json.loads(Path(f"cmp/fedavg/seed-0/analysis-client-{i}.json").read_text())
        assert content["sample"] == f"digits/train, client {i}, all {len(split[i])}"
    assert not Path("cmp/fedavg/seed-0/analysis.json").exists()
    table = ok(steppe, *words, "all")
    assert all(f"seed-0, client {i}" in table for i in range(4))
    usual = ok(steppe, "analyze", "cmp/fedavg/seed-0", *SMALL, "--client", "1")  # what needs a round is left out
    assert "consistency" not in usual
    assert "trace" in usual
    ok(steppe, "analyze", "cmp/fedavg/seed-0", *SMALL, "--client", "1", "-m", "landscape", "--landscape", "3")
    assert Path("cmp/fedavg/seed-0/analysis/client-1/landscape.npz").is_file()
    assert "clients are 0 to 3" in refused(steppe, *words, "7")
    assert "such as 3 or 0,4,7" in refused(steppe, *words, "first")
    assert "leave out --client" in refused(steppe, "analyze", "cmp/fedavg/seed-0", "-m", "consistency", "--client", "1")


def test_measures_are_listed(steppe: Steppe) -> None:
    found = json.loads(ok(steppe, "list", "--json"))["measures"]
    assert {"lambda1", "smallest", "trace", "trace_pp", "density", "sharpness", "ascent", "asam", "lpf",
            "gradient_norm", "per_layer", "landscape", "landscape_random", "line", "consistency", "divergence",
            "alignment", "flatness_discrepancy", "flatness_distance", "proximal_effect", "radius_profile",
            "forgetting"} <= set(found)  # fmt: skip
    assert "Our" in found["flatness_distance"]["about"]
    assert found["lambda1"]["settings"]["usual"]
    assert "usual" not in found["density"]["settings"]


def test_names(steppe: Steppe, runs: Path) -> None:
    assert "did you mean 'lambda1'" in refused(steppe, "analyze", "cmp", "--measures", "lamda1")
    assert "did you mean 'trace'" in refused(steppe, "compare", "fedavg", *QUICK, "--measures", "tracce")
    assert not Path("runs").exists()
    assert "did you mean 'lambda1'" in refused(steppe, "run", "fedavg", *QUICK, "--measure", "lamda1:10")
    assert "holds no run" in refused(steppe, "analyze", "nowhere")
    assert "selects no measure" in refused(steppe, "analyze", "cmp", "--measures", ",")
    assert steppe("analyze", "cmp", "--samples", "0").code == 2


def test_a_run_without_its_model(steppe: Steppe, runs: Path) -> None:
    Path("cmp/fedavg/seed-0/model.safetensors").unlink()
    Path("cmp/fedavg/seed-1/result.json").unlink()
    for seed in (0, 1):
        said = refused(steppe, "analyze", f"cmp/fedavg/seed-{seed}")
        assert f"cmp/fedavg/seed-{seed} has no model yet" in said
    said = steppe("analyze", "cmp", *SMALL, "--measures", "loss")  # the others are measured all the same
    assert said.code == 2
    assert said.err.count("has no model yet") == 2
    assert "scaffold/seed-0" in said.out
    Path("cmp/scaffold/seed-0/model.safetensors").write_bytes(b"no weights")
    assert "is damaged" in refused(steppe, "analyze", "cmp/scaffold/seed-0", *SMALL, "--measures", "loss")


@pytest.mark.parametrize("measure", ["lambda1", "sharpness", "loss", "landscape_random"])
def test_a_model_that_is_not_finite(steppe: Steppe, runs: Path, measure: str) -> None:
    path = Path("cmp/fedavg/seed-0/model.safetensors")
    state = load_file(path)
    next(iter(state.values())).view(-1)[3] = torch.nan
    save_file(state, path)
    said = refused(steppe, "analyze", "cmp/fedavg/seed-0", *SMALL, "--measures", measure)
    assert "cmp/fedavg/seed-0: The model has values that are not finite" in said
    assert not Path("cmp/fedavg/seed-0/analysis.json").exists()


@pytest.mark.parametrize("free", [100_000, 5_000_000])
def test_a_model_too_large_for_memory(steppe: Steppe, runs: Path, monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    """Even the model, or Lanczos' basis of 60 vectors."""
    monkeypatch.setattr(free_memory, "find_free_memory", lambda device: free)
    said = refused(steppe, "analyze", "cmp/fedavg/seed-0", *SMALL, "--measures", "lambda1")
    assert "GiB are free" in said
    assert ("The model in" if free < 1_000_000 else "A basis of") in said


def test_when_memory_runs_out_on_the_way(steppe: Steppe, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr("steppe.flatness.spectrum", full)
    assert "fewer --samples" in refused(steppe, "analyze", "cmp/fedavg/seed-0", *SMALL, "--measures", "lambda1")


def test_no_rounds(steppe: Steppe) -> None:
    ok(steppe, "run", "fedavg", *QUICK, "--rounds", "0", "--out", "none")
    assert "has no finished round" in refused(steppe, "analyze", "none")


def test_settings_that_do_not_fit(steppe: Steppe, runs: Path) -> None:
    about = Path("cmp/fedavg/seed-0/about.json")
    content = json.loads(about.read_text())
    about.write_text(json.dumps({**content, "parts": [{"part": "my_own"}]}))
    assert "algorithm=…" in refused(steppe, "analyze", "cmp/fedavg/seed-0", *SMALL)
    about.write_text(json.dumps({**content, "model": None}))
    assert "model=YourModule()" in refused(steppe, "analyze", "cmp/fedavg/seed-0", *SMALL)


def test_a_damaged_analysis(steppe: Steppe, runs: Path) -> None:
    path = Path("cmp/fedavg/seed-0/analysis.json")
    path.write_text('{"measures": ')
    assert "is damaged" in refused(steppe, "analyze", "cmp/fedavg/seed-0", *SMALL, "--measures", "loss")
    path.write_text('{"measures": []}')
    assert "are replaced" in steppe("analyze", "cmp/fedavg/seed-0", *SMALL, "--measures", "loss").err
    assert "loss" in json.loads(path.read_text())["measures"]


# --- run --measure


def test_run_with_measures(steppe: Steppe) -> None:
    words = ("run", "fedavg", *QUICK, "--rounds", "4", "--measure", "gradient_norm:2", "--measure", "consistency:4")
    ok(steppe, *words, "--out", "one")
    lines = [json.loads(line) for line in Path("one/rounds.jsonl").read_text().splitlines()]
    assert [set(line.get("measures", {})) for line in lines] == [
        set(), {"gradient_norm"}, set(), {"gradient_norm", "consistency"}]  # fmt: skip
    assert [line.get("sample") for line in lines] == [None, "digits/train, all 1437"] * 2
    assert json.loads(Path("one/config.json").read_text())["measure"] == ["gradient_norm:2", "consistency:4"]
    assert "measures.gradient_norm" in Path("one/rounds.csv").read_text().splitlines()[0]
    Path("two.toml").write_text('model = "mlp"\nclients = 4\nper_round = 2\nmax_steps = 2\nmeasure = ["lpf:1"]\n')
    ok(steppe, "run", "fedavg", "--config", "two.toml", "--rounds", "1", "--out", "two")
    assert "lpf" in Path("two/rounds.jsonl").read_text()


# --- compare


def test_compare_tests_against_the_first(steppe: Steppe) -> None:
    names = ("fedavg", "fedsam:rho=0.5")
    words = ("compare", *names, *QUICK, "--rounds", "2", "--seeds", "3", "--out", "cmp", "--measures",
             "gradient_norm,loss", *SMALL)  # fmt: skip
    told = json.loads(ok(steppe, *words, "--json"))
    last = {n: [json.loads(Path(f"cmp/{n}/seed-{s}/result.json").read_text())["last"] for s in range(3)] for n in names}
    assert told["lines"][0]["against_first"] is None
    for name, line in list(zip(names, told["lines"], strict=True))[1:]:
        test, wanted = line["against_first"], stats.ttest_rel(last[name], last["fedavg"])
        differences = [a - b for a, b in zip(last[name], last["fedavg"], strict=True)]
        assert test["seeds"] == 3
        assert test["difference"] == pytest.approx(sum(differences) / 3)
        assert test["error"] == pytest.approx(stats.sem(differences))
        assert test["p"] == (pytest.approx(wanted.pvalue) if test["error"] > 1e-9 else None)
    files = [json.loads(Path(f"cmp/{names[1]}/seed-{s}/analysis.json").read_text()) for s in range(3)]
    norms = [file["measures"]["gradient_norm"]["value"] for file in files]
    mean, deviation = told["flatness"]["rows"][names[1]]["‖g‖"]
    assert told["flatness"]["sample"] == "digits/train, 100 class-balanced, seed 0"
    assert mean == pytest.approx(sum(norms) / 3)
    assert deviation == pytest.approx(stats.tstd(norms))
    again = steppe(*words)
    assert again.err.count("already finished") == 6
    assert "gradient_norm," not in again.err
    for text in ("− first", "p: paired t-test", "‖g‖", "2.00×"):
        assert text in again.out


def test_compare_measures_flatness_unless_told_not_to(steppe: Steppe) -> None:
    words = ("compare", "fedavg", "fedsam", *QUICK, "--rounds", "1", "--out", "cmp", "--json")
    told = json.loads(ok(steppe, *words))["flatness"]
    assert told["sample"] == "digits/train, 1000 class-balanced, seed 0"
    assert set(told["rows"]["fedsam"]) == {"λ1", "λ1/λ5", "SAM"}
    assert "flatness" not in json.loads(ok(steppe, *words, "--measures", "none"))


def test_one_seed_has_no_test(steppe: Steppe) -> None:
    words = (*QUICK, "--rounds", "1", "--out", "cmp", "--measures", "none")
    text = ok(steppe, "compare", "fedavg", "fedsam", *words)
    heading = next(line for line in text.splitlines() if line.startswith("algorithm"))
    assert "− first" in heading
    assert " p " not in heading
    alone = ok(steppe, "compare", "fedavg", *words)
    assert "− first" not in alone


def test_a_first_that_failed_is_no_reference(steppe: Steppe) -> None:
    said = steppe("compare", "fedavg:lr=1e9", "fedavg", *QUICK, "-s", "max_steps=20", "--rounds", "2", "--out", "c",
                  "--measures", "none")  # fmt: skip
    assert said.code == 3
    assert "− first" not in said.out


@pytest.mark.slow
def test_tables_fit_on_a_terminal(runs: Path) -> None:
    shown = on_a_terminal(80, "analyze", str(runs), *SMALL, "--measures", "usual,proximal_effect,flatness_distance")
    table = shown[: shown.index("Measured on")]
    heads = [line for line in table.splitlines() if line.startswith(("run ", "fedavg", "scaffold"))]
    assert len(heads) >= 5 * 4
    assert max(len(line.rstrip()) for line in heads) <= 80
    for heading in ("λ1", "trace", "LPF", "forgetting", "D1 (ours)", "cos(g_u,g_p)"):
        assert heading in table
