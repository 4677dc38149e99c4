"""Every algorithm of the catalogue through Flower's messages, against the simulator."""

import json
import lzma

import pytest
import torch
from torch.utils._pytree import tree_leaves

from steppe.algorithms import CATALOGUE
from steppe.core.wire import flatten_states
from tests.flower.memory import launch, replay, settings_of, states_on_disk

FURTHER = [("fedscar", {"scale": "var"}), ("fedscar", {"variant": "lagged"}), ("fedsmoo", {"variant": "official"})]


@pytest.mark.parametrize(("name", "settings"), [*((n, {}) for n in CATALOGUE), *FURTHER], ids=str)
def test_equals_the_simulator(name, settings, tmp_path):
    """Global model, server state and the states on the nodes' disks, with clients that pause and come back."""
    run = {"algorithm": name, "settings": settings}
    result, grid, told = launch(tmp_path, run)
    _, config = settings_of(run)
    server, store = replay(config, [result.experiment.sample(t) for t in range(config.rounds)])
    assert not [t for t in told if "refused" in t or "no reply" in t], told
    assert {kind for kind, _ in grid.log} == {"query", "train"}
    if name != "local":
        assert not torch.equal(server.x, result.experiment.task.x0)
    close(result.server.x, server.x)
    for mine, theirs in zip(tree_leaves(result.server.state), tree_leaves(server.state), strict=True):
        close(mine, theirs)
    kept = states_on_disk(tmp_path / "nodes")
    for client in store.list_known():
        theirs = flatten_states(store.gather([client])[0])
        mine = kept[client][max(kept[client])] if theirs else {}
        assert set(mine) == set(theirs)
        for key, value in theirs.items():
            close(mine[key], value)


def close(mine, theirs):
    scale = max(1.0, float(theirs.abs().max())) if theirs.numel() else 1.0
    assert torch.allclose(mine, theirs, rtol=0, atol=1e-6 * scale)


def test_batch_norm_is_averaged_as_in_the_simulator(tmp_path):
    run = {"algorithm": "fedsam", "model": "tests.flower.own:norm_model"}
    result, _, _ = launch(tmp_path, {"algorithm": "fedsam"}, terms={"own": {"model": run["model"]}})
    from steppe.engine.build import build_experiment
    from steppe.engine.rounds import simulate
    from tests.flower.own import norm_model

    _, config = settings_of({"algorithm": "fedsam"})
    torch.manual_seed(config.seed)
    whole = simulate(build_experiment(config, model=norm_model()))
    assert result.server.buffers
    close(result.server.x, whole.server.x)
    for name, value in whole.server.buffers.items():
        close(result.server.buffers[name], value)


def test_own_part_and_model(tmp_path):
    """A user's part with state on both sides runs unchanged."""
    from steppe.engine.build import build_experiment
    from steppe.engine.rounds import simulate
    from tests.flower.own import model, parts

    result, _, _ = launch(tmp_path, {}, terms={"own": {"model": "tests.flower.own:model",
                                                       "parts": "tests.flower.own:parts"}})  # fmt: skip
    _, config = settings_of({})
    torch.manual_seed(config.seed)
    whole = simulate(build_experiment(config, parts(), model()))
    close(result.server.x, whole.server.x)
    assert states_on_disk(tmp_path / "nodes")


@pytest.mark.parametrize("part", ["median", "krum:bad=1,keep=1", "norm_bound:limit=0.05", "dp:clip=0.1,noise=0.5"])
def test_privacy_and_robust_rules_are_the_same(part, tmp_path):
    """They stand on the server; a node needs neither their secrets nor their packages."""
    from steppe.engine.build import build_experiment
    from steppe.engine.rounds import simulate

    if part.startswith("dp"):
        pytest.importorskip("dp_accounting", reason="the extra dp is not installed")
        part += f",secret={tmp_path / 'secret'}"
    run = {"algorithm": "scaffold", "clients": 5, "per_round": 5, "add": [part]}
    result, _, told = launch(tmp_path, run)
    whole = simulate(build_experiment(settings_of(run)[1]))
    assert not [t for t in told if "refused" in t or "no reply" in t], told
    close(result.server.x, whole.server.x)
    assert result.history[-1].get("epsilon") == whole.history[-1].get("epsilon")
    assert {"participants", "samples"} & set(result.history[-1]) == (
        set() if part.startswith("dp") else {"participants", "samples"}  # who took part is then a secret
    )


def test_the_records_say_what_is_known_of_the_nodes(tmp_path, capsys):
    """Not what the server made up in the place of their samples."""
    from dataclasses import asdict

    from steppe.cli.federate import _show_result
    from steppe.engine.build import build_experiment
    from steppe.flower.overhead import measure
    from steppe.report.read_runs import read
    from steppe.report.repeat import describe_data, explain_repeat
    from steppe.runs.folder import RunFolder

    own = {"own": {"loss": "tests.flower.own:focal"}}
    result, _, _ = launch(tmp_path, {"per_round": 3}, out=tmp_path / "run", terms=own)
    whole = build_experiment(settings_of({"per_round": 3})[1])
    about = json.loads((tmp_path / "run/about.json").read_text())
    assert about["data"]["train"] is None
    assert about["data"]["test"] == len(whole.federation.data.test_targets)
    assert about["cost"] == asdict(whole.cost)
    told = measure(result.history, result.experiment.cost)
    sizes = whole.federation.sizes
    assert told["samples"] == {str(client): size for client, size in enumerate(sizes)}
    RunFolder(tmp_path / "run").write("result.json", {**result.summary, "nodes": told})  # as the server does
    (run,) = read([tmp_path / "run"]).runs
    assert describe_data(run) == f"digits ({sum(sizes):,} training examples of 3 of 3 clients)"
    assert "the loss tests.flower.own.focal" in explain_repeat(run).sentence
    told["samples"].pop("2")  # it never replied
    RunFolder(tmp_path / "run").write("result.json", {**result.summary, "nodes": told})
    _show_result(RunFolder(tmp_path / "run"), result.experiment.config, False)
    assert "on 2 of 3 nodes" in capsys.readouterr().out


def test_a_natural_federation_of_text(tmp_path):
    """Each node has a role's text; the model by name knows how many tokens there are."""
    from steppe.engine.build import build_experiment
    from steppe.engine.rounds import simulate

    lines = [
        json.dumps({"play": "p", "role": f"R{i}", "text": f"a{i} good word, my lord. " * (15 + 4 * i)})
        for i in range(3)
    ]
    (tmp_path / "shakespeare-full.jsonl.xz").write_bytes(lzma.compress("\n".join(lines).encode()))
    run = {"data": "shakespeare-full", "data_folder": str(tmp_path), "model": "gpt", "partition": "natural",
           "rounds": 1, "max_steps": 1, "batch": 2}  # fmt: skip
    result, _, _ = launch(tmp_path, run)
    whole = simulate(build_experiment(settings_of(run)[1]))
    close(result.server.x, whole.server.x)
    assert result.history[-1]["accuracy"] == whole.history[-1]["accuracy"]


def test_several_metrics_are_evaluated_on_the_server(tmp_path):
    """By name in [run], or as the user's own in [own]; each under its name, with its direction."""
    named, _, _ = launch(tmp_path / "a", {"metrics": ["accuracy", "top5"]})
    record = named.history[-1]
    assert record["accuracy"] <= record["top5"] <= 1
    own = {"metric": ["tests.flower.own:margin", "accuracy"]}
    mine, _, _ = launch(tmp_path / "b", {}, terms={"own": own})
    assert [m.name for m in mine.experiment.task.metrics] == ["margin", "accuracy"]
    assert mine.history[-1]["accuracy"] == record["accuracy"]
    assert mine.summary["metrics"]["margin"]["direction"] == "lower"
    close(named.server.x, mine.server.x)
