"""The plain references reproduce every vector, so that either can stand in for the other."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

HERE = Path(__file__).parent
VECTORS = HERE.parent / "vectors"


def load(name):
    spec = importlib.util.spec_from_file_location(f"reference_{name}", HERE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


quadratic = load("quadratic")
QUADRATIC = json.loads((VECTORS / "quadratic.json").read_text())
LONG = json.loads((VECTORS / "fedscar_longrun.json").read_text())


def close(got, want, what):
    np.testing.assert_allclose(np.array(got, float), np.array(want, float), rtol=0, atol=1e-12, err_msg=what)


@pytest.mark.parametrize("case", QUADRATIC["cases"], ids=[case["id"] for case in QUADRATIC["cases"]])
def test_quadratic_vectors(case):
    problem = {**QUADRATIC["problems"][case["problem"]], **case.get("change", {})}
    out = quadratic.run(case["algorithm"], problem, case["settings"])
    assert len(out["x"]) == len(case["x"])
    for t, want in enumerate(case["x"]):
        close(out["x"][t], want, f"x, round {t}")
    for name, rounds in case.get("server", {}).items():
        for t, want in enumerate(rounds):
            if want is not None:
                close(out["server"][name][t], want, f"server {name}, round {t}")
    for name, rounds in case.get("clients", {}).items():
        for t, want in enumerate(rounds):
            for i, value in (want or {}).items():
                close(out["clients"][name][t][int(i)], value, f"{name} of client {i}, round {t}")
    for t, want in enumerate(case.get("locals", [])):
        for i, value in want.items():
            close(out["locals"][t][int(i)], value, f"model of client {i}, round {t}")
    for t, want in enumerate(case.get("consistency", [])):
        if want is not None:
            close(out["consistency"][t], want, f"consistency, round {t}")
    for name in ("flatness_discrepancy", "s"):
        for t, want in enumerate(case.get("extra", {}).get(name, [])):
            close(out[name][t], want, f"{name}, round {t}")
    for t, want in enumerate(case.get("extra", {}).get("d", [])):
        for i, value in (want or {}).items():
            close(out["clients"]["d"][t][int(i)], value, f"d of client {i}, round {t}")


@pytest.mark.parametrize("row", LONG["rows"], ids=[row["id"] for row in LONG["rows"]])
def test_fedscar_long_run(row):
    schedules = {"full": [[0, 1, 2]] * 400, "partial": [LONG["pairs"][letter] for letter in LONG["partial_rounds"]]}
    for name, rounds in schedules.items():
        out = quadratic.run("fedscar", {**LONG["problem"], "rounds": rounds}, row["settings"])
        x, want = np.array(out["x"][-50:]), row[name]
        got = {
            "distance": np.mean(np.linalg.norm(x, axis=1)),
            "flatness_discrepancy": np.mean(out["flatness_discrepancy"][-50:]),
            "oscillation": np.mean(np.linalg.norm(x - x.mean(0), axis=1)),
        }
        for key, value in got.items():
            if want["rtol"] is not None:
                np.testing.assert_allclose(value, want[key], rtol=want["rtol"], err_msg=f"{name} {key}")
            else:
                assert value < 10 * want[key]


def test_fedscar_partial_schedule_is_the_stated_stream():
    draw = np.random.default_rng(0)
    for letter in LONG["partial_rounds"]:
        assert LONG["pairs"][letter] == sorted(draw.choice(3, 2, replace=False).tolist())


# Where no vector exists: the reference meets its own reductions.
def toy(**change):
    return {**QUADRATIC["problems"]["smoo"], **change}


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("fedprox", {"mu": 0.0}),
        ("fedsam", {"rho": 0.0}),
        ("fedasam", {"rho": 0.0}),
        ("fedsol", {"rho": 0.0}),
        ("fedsol_ablation", {"variant": "a0", "rho": 1.0}),
        ("fedavgm", {"server_momentum": 0.0}),
        ("relaxed_start", {"beta": 0.0}),
        ("fednova", {}),
        ("fedlesam", {"rho": 0.0}),
        ("fednsam", {"rho": 0.0, "gamma": 0.0}),
        ("fedgf", {"rho": 0.0, "threshold": np.inf, "window": 3}),
        ("fedswa", {"end": 1.0, "server_lr": 1.0}),
        ("swa", {}),
        ("ema", {}),
        ("latest_mean", {}),
    ],
)
def test_reduces_to_fedavg(algorithm, settings):
    plain = quadratic.run("fedavg", toy(), {})
    other = quadratic.run(algorithm, toy(), settings)
    for a, b in zip(plain["x"], other["x"], strict=True):
        close(b, a, algorithm)


@pytest.mark.parametrize(
    ("algorithm", "settings", "base", "base_settings"),
    [
        ("fedgamma", {"rho": 0.0}, "scaffold", {}),
        ("fedlesam_s", {"rho": 0.0}, "scaffold", {}),
        ("fedlesam_d", {"rho": 0.0}, "feddyn", {}),
        ("fedspeed", {"rho": 0.0, "variant": "official"}, "feddyn", {}),
        ("mofedsam", {"rho": 0.0}, "fedcm", {}),
        ("fedsol_ablation", {"variant": "a1", "rho": 0.7}, "fedsol", {"rho": 0.7}),
        ("fedsol_ablation", {"variant": "a5", "rho": 0.7, "beta": 0.3}, "fedprox", {"mu": 0.3}),
        ("fedgf", {"rho": 0.1, "threshold": np.inf, "window": 3}, "fedsam", {"rho": 0.1, "eps": 1e-16}),
        ("fedscar", {"alpha": 0.0, "variant": "lagged"}, "fedscar", {"alpha": 0.0}),
        ("fedscar", {"alpha": 0.0, "beta": 0.0}, "fedavg", {}),
    ],
)
def test_reduces_to_another(algorithm, settings, base, base_settings):
    a = quadratic.run(algorithm, toy(), settings)
    b = quadratic.run(base, toy(), base_settings)
    for left, right in zip(a["x"], b["x"], strict=True):
        close(left, right, f"{algorithm} and {base}")


def test_fedmoswa_is_scaffold_while_all_are_active():
    """With gain 1 the mean is that of the clients' new variates; in the first round it has no say."""
    everyone = toy(rounds=[[0, 1, 2]] * 3)
    plain = {"end": 1.0, "server_lr": 1.0, "gamma": 1.0}
    close(quadratic.run("fedmoswa", everyone, plain)["x"], quadratic.run("scaffold", everyone, {})["x"], "scaffold")
    first = [quadratic.run(name, toy(), {"end": 0.3, "server_lr": 1.2})["x"][0] for name in ("fedmoswa", "fedswa")]
    close(*first, "the first round")


def test_feddc_variants_agree_where_they_should():
    """One client, one round: nothing to compare with, so both are a plain proximal round plus its own drift."""
    problem = toy(rounds=[[0]], clients=toy()["clients"][:1])
    paper = quadratic.run("feddc", problem, {"variant": "paper"})
    official = quadratic.run("feddc", problem, {"variant": "official"})
    close(paper["x"][0], official["x"][0], "feddc")


def test_evaluated_averages():
    problem = toy(rounds=[[0, 1], [1, 2], [0, 2], [0, 1]] * 3)
    swa = quadratic.run("swa", problem, {"start": 0.5, "cycle": 2})
    close(swa["evaluated"][7], swa["x"][7], "nothing collected yet")
    close(swa["evaluated"][8], swa["x"][8], "the first one overwrites")
    close(swa["evaluated"][11], (swa["x"][8] + swa["x"][10]) / 2, "the mean of two")
    ema = quadratic.run("ema", problem, {"keep": 0.5})
    close(ema["evaluated"][0], (np.array(problem["x0"]) + ema["x"][0]) / 2, "ema")
    mean = quadratic.run("latest_mean", problem, {})
    first = (mean["locals"][0][0] + mean["locals"][0][1] + np.array(problem["x0"])) / 3
    close(mean["evaluated"][0], first, "a client that was never active still has the first model")


def test_local_never_moves_the_global_model():
    problem = toy(momentum=0.9)
    out = quadratic.run("local", problem, {})
    close(out["x"][-1], problem["x0"], "x")
    assert not np.allclose(out["clients"]["w"][-1][0], problem["x0"])


# ------------------------------------------------------------------------------------- small classifiers
softmax = load("softmax")
SOFTMAX = json.loads((VECTORS / "softmax.json").read_text())


def test_ablation_gradients():
    v = SOFTMAX["T2"]
    A, b, x, w = (np.array(v[k], float) for k in ("A", "b", "x", "w"))
    gl, gp = A @ (w - b), w - x
    unit = {
        "eps_proximal": gp,
        "eps_combined": gl + gp,
        "eps_combined_beta": gl + v["beta"] * gp,
    }
    e = {k: v["rho"] * g / (np.linalg.norm(g) + v["eps_guard"]) for k, g in unit.items()}
    for name, value in e.items():
        close(value, v[name], name)
    near, combined = e["eps_proximal"], e["eps_combined"]
    got = {
        "a0": gl,
        "a1": A @ (w + near - b),
        "a2": gl + v["beta"] * (w + near - x),
        "a3": A @ (w + near - b) + v["beta"] * (w + near - x),
        "a4": A @ (w + combined - b) + v["beta"] * (w + combined - x),
        "a5": gl + v["beta"] * gp,
        "a6": A @ (w + near - b) + v["beta"] * gp,
    }
    for name, value in got.items():
        close(value, v[name], name)


def test_fedsol_on_a_linear_classifier():
    v = SOFTMAX["T7"]
    X, W = np.array(v["X"], float), np.array(v["W"], float)
    got, log = softmax.fedsol_client(W, X, v["y"], v["rho"], v["tau"], v["lr"], v["momentum"], v["steps"])
    close(got, v["fedsol_W"], "FedSoL")
    for a, b in zip(log, v["log"], strict=True):
        for key, value in b.items():
            close(a[key], value, key)
    plain, _ = softmax.fedsol_client(W, X, v["y"], 0.0, v["tau"], v["lr"], v["momentum"], v["steps"])
    close(plain, v["fedavg_W"], "FedAvg")
    close(softmax.adaptive_eps(plain, W, X, v["rho"], v["tau"], None), v["eps_layer"], "layer")
    close(softmax.adaptive_eps(plain, W, X, v["rho"], v["tau"], 0), v["eps_adaptive"], "axis 0")


def test_losses():
    v = SOFTMAX["T8"]
    z, teacher = np.array(v["logits"], float), np.array(v["teacher"], float)
    features = [np.array(v[k], float) for k in ("features", "features_global", "features_previous")]
    close(softmax.cross_entropy(z, v["y"]), v["cross_entropy"], "cross entropy")
    close(softmax.kl(teacher, z, 3), v["kl_tau3"], "KL")
    close(softmax.ntd(teacher, z, v["y"], 1), v["ntd_tau1"], "NTD 1")
    close(softmax.ntd(teacher, z, v["y"], 3), v["ntd_tau3"], "NTD 3")
    close(softmax.contrastive(*features, 0.5), v["moon_tau0.5"], "MOON 0.5")
    close(softmax.contrastive(*features, 1.0), v["moon_tau1"], "MOON 1")


@pytest.mark.parametrize("variant", ["official", "paper"])
def test_fedgmt(variant):
    v = SOFTMAX["FedGMT"]
    out = softmax.fedgmt(v["problem"], {**v["settings"], "variant": variant})
    for got, want in zip(out, v[variant], strict=True):
        close(got["w"].ravel(), want["w"], "w")
        close(got["e"].ravel(), want["e"], "e")
        for i, h in want["h"].items():
            close(got["h"][int(i)].ravel(), h, f"h of client {i}")
        for i, w in want["local"].items():
            close(got["local"][int(i)].ravel(), w, f"model of client {i}")


def test_fedgmt_gradient():
    v, settings = SOFTMAX["FedGMT"]["gradient"], SOFTMAX["FedGMT"]["settings"]
    client = SOFTMAX["FedGMT"]["problem"]["clients"][0]
    X, W, e = np.array(client["X"], float), np.array(v["W"], float), np.array(v["e"], float)
    tau = settings["tau"]
    loss = softmax.cross_entropy(X @ W.T, client["y"]) + tau**2 * softmax.kl(X @ e.T, X @ W.T, tau)
    close(loss, v["loss"], "loss")
    got = softmax.fedgmt_gradient(W, e, X, client["y"], settings["weight"], tau).ravel()
    close(got, v["gradient"], "gradient")
    np.testing.assert_allclose(got, v["gradient_by_differences"], atol=1e-9)


def test_man():
    v = SOFTMAX["MAN"]
    W1, W2 = np.array(v["problem"]["W1"], float), np.array(v["problem"]["W2"], float)
    X, y = np.array(v["problem"]["clients"][0]["X"], float), v["problem"]["clients"][0]["y"]
    start = v["at_start"]
    loss, act, d1, d2 = softmax.man_gradient(W1, W2, X, y, start["weight"])
    for got, want in ((loss, "loss"), (act, "act"), (d1, "dW1"), (d2, "dW2")):
        close(got, start[want], want)
    for weight in (0, 0.3):
        for got, want in zip(softmax.man(v["problem"], weight), v[f"weight {weight}"], strict=True):
            close(got[0], want["W1"], "W1")
            close(got[1], want["W2"], "W2")
            close(softmax.man_gradient(*got, X, y, weight)[1], want["act0"], "activation")
    top, per_sample, mean = softmax.last_layer_hessian(W1, W2, X)
    hessian = v["last_layer_hessian"]
    close(top, hessian["top"], "top")
    close(per_sample, hessian["per_sample"], "per sample")
    close(mean, hessian["mean"], "mean")


def test_streams():
    v = SOFTMAX["T9"]
    for t, want in enumerate(v["sampled"]):
        assert softmax.sampled(t, 100, 10) == want
    lda = v["lda"]
    labels = np.arange(lda["samples"]) % lda["classes"]
    parts, tries = softmax.lda(labels, lda["clients"], lda["alpha"], lda["seed"])
    assert tries == lda["tries"]
    assert [len(part) for part in parts] == lda["sizes"]
    assert [np.bincount(labels[part], minlength=4).tolist() for part in parts] == lda["counts"]
    assert [part[:5] for part in parts] == lda["first"]
    for row in SOFTMAX["streams"]["bernoulli"]:
        for t, want in enumerate(row["rounds"]):
            assert softmax.bernoulli(20 + t, row["clients"], row["ratio"]) == want
    for row in SOFTMAX["streams"]["splits"]:
        ids, labels = softmax.with_replacement(np.arange(1000) % 10, 10, row["kind"], row["parameter"], 20)
        everything = [i for client in ids for i in client]
        assert np.bincount(labels[ids[0]], minlength=10).tolist() == row["counts_0"]
        assert len(set(everything)) == row["distinct"]
        assert ids[0][:5] == row.get("first_0", ids[0][:5])
        totals = np.bincount(labels[everything], minlength=10).tolist()
        assert totals == row.get("class_totals", totals)


def test_curvature():
    v, problem = SOFTMAX["T10"], QUADRATIC["problems"]["sol"]
    H = 0.75 * np.array(problem["clients"][0]["A"]) + 0.25 * np.array(problem["clients"][1]["A"])
    close(H, v["H"], "H")
    eigenvalues = np.linalg.eigvalsh(H)[::-1]
    close(eigenvalues, v["eigenvalues"], "eigenvalues")
    close(eigenvalues[0] / eigenvalues[1], v["ratio"], "ratio")
    out = quadratic.run("fedavg", problem, {})
    gaps = [np.linalg.norm(w - np.array(problem["x0"])) for w in out["locals"][0].values()]
    close(np.mean(gaps), v["divergence"], "divergence")


# ----------------------------------------------------------------------------------------- a tiny network
mlp = load("mlp")
KINDS = ["fedavg", "fedprox", "fedsam", "fedasam", "scaffold", "feddyn", "fedadam", "fedntd", "moon", "fedsol"]
KINDS += ["fedgmt", "man"]


def network_problem(model, batches, **more):
    """One full batch a step; clients with fewer samples are filled up and masked."""
    steps, width = more.pop("steps"), max(len(X) for X, _ in batches)
    x = torch.zeros(len(batches), steps, width, len(batches[0][0][0]), dtype=torch.float64)
    y = torch.zeros(len(batches), steps, width, dtype=torch.long)
    mask = torch.zeros(len(batches), steps, width, dtype=torch.bool)
    for i, (X, labels) in enumerate(batches):
        x[i, :, : len(X)] = torch.tensor(X, dtype=torch.float64)
        y[i, :, : len(X)] = torch.tensor(labels)
        mask[i, :, : len(X)] = True
    return {"model": model, "x": x, "y": y, "mask": mask, **more}


def linear_stack(*matrices):
    """ReLU between layers without biases, with the given weights."""
    layers = []
    for W in matrices:
        layer = nn.Linear(len(W[0]), len(W), bias=False).double()
        with torch.no_grad():
            layer.weight.copy_(torch.tensor(W, dtype=torch.float64))
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@pytest.mark.parametrize("variant", ["official", "paper"])
def test_network_fedgmt(variant):
    v = SOFTMAX["FedGMT"]
    p = v["problem"]
    problem = network_problem(
        lambda: linear_stack(p["W"]),
        [(c["X"], c["y"]) for c in p["clients"]],
        steps=p["steps"],
        weights=[2, 1, 1],
        lr=p["lr"],
        lr_decay=p["lr_decay"],
        momentum=p["momentum"],
        decay=p["weight_decay"],
    )
    got = mlp.run("fedgmt", p["rounds"], problem, {**v["settings"], "variant": variant})
    close(got.numpy(), v[variant][-1]["w"], "w")


@pytest.mark.parametrize("weight", [0, 0.3])
def test_network_man(weight):
    p = SOFTMAX["MAN"]["problem"]
    problem = network_problem(
        lambda: linear_stack(p["W1"], p["W2"]),
        [(c["X"], c["y"]) for c in p["clients"]],
        steps=p["steps"],
        weights=[1, 1],
        lr=p["lr"],
        clip=p["clip"],
        momentum=p["momentum"],
        decay=p["weight_decay"],
    )
    got = mlp.run("man", p["rounds"], problem, {"weight": weight}).numpy()
    want = SOFTMAX["MAN"][f"weight {weight}"][-1]
    close(got, np.concatenate([np.ravel(want["W1"]), np.ravel(want["W2"])]), "W1, W2")


def test_network_fedsol():
    v = SOFTMAX["T7"]
    problem = network_problem(
        lambda: linear_stack(v["W"]),
        [(v["X"], v["y"])],
        steps=v["steps"],
        weights=[1],
        lr=v["lr"],
        momentum=v["momentum"],
        decay=v["weight_decay"],
    )
    for rho, want in ((v["rho"], "fedsol_W"), (0.0, "fedavg_W")):
        got = mlp.run("fedsol", 1, problem, {"rho": rho, "tau": v["tau"]})
        close(got.numpy(), np.ravel(v[want]), want)


def random_problem(momentum=0.9):
    def model():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))

    draw = torch.Generator().manual_seed(0)
    return {
        "model": model,
        "x": torch.randn(3, 4, 6, 4, generator=draw),
        "y": torch.randint(0, 3, (3, 4, 6), generator=draw),
        "mask": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]]),
        "weights": [4, 2, 3],
        "lr": 0.1,
        "momentum": momentum,
        "decay": 1e-3,
    }


ROUNDS = [[0, 1], [1, 2], [0, 2]]


@pytest.mark.parametrize("kind", KINDS)
def test_network_kinds_run_and_differ(kind):
    got = mlp.run(kind, ROUNDS, random_problem(), {}).numpy()
    assert np.isfinite(got).all()
    plain = mlp.run("fedavg", ROUNDS, random_problem(), {}).numpy()
    assert kind == "fedavg" or np.abs(got - plain).max() > 1e-6


@pytest.mark.parametrize(
    ("kind", "off"),
    [
        ("fedprox", {"mu": 0.0}),
        ("fedsam", {"rho": 0.0}),
        ("fedasam", {"rho": 0.0}),
        ("fedntd", {"beta": 0.0}),
        ("moon", {"mu": 0.0}),
        ("fedsol", {"rho": 0.0}),
        ("man", {"weight": 0.0}),
    ],
)
def test_network_switched_off_is_fedavg(kind, off):
    plain = mlp.run("fedavg", ROUNDS, random_problem(), {}).numpy()
    close(mlp.run(kind, ROUNDS, random_problem(), off).numpy(), plain, kind)


def test_network_fedavg_is_torch_sgd():
    problem, ends = random_problem(), []
    for i in range(3):
        model = problem["model"]().double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
        for k in range(int(problem["mask"][i].sum())):
            optimizer.zero_grad()
            F.cross_entropy(model(problem["x"][i, k].double()), problem["y"][i, k]).backward()
            optimizer.step()
        ends.append(mlp.flat(model))
    want = sum(w * end for w, end in zip(problem["weights"], ends, strict=True)) / 9
    close(mlp.run("fedavg", 1, problem, {}).numpy(), want.numpy(), "one round")


@pytest.mark.parametrize("kind", ["scaffold", "feddyn"])
def test_network_states_follow_the_quadratic_reference(kind):
    """With steps so small that the loss is linear, both references see the same constant gradients."""
    problem = random_problem(momentum=0)
    problem.update(lr=1e-7, decay=0.0, weights=[1, 1, 1])
    problem["x"], problem["y"] = problem["x"][:, :1].repeat(1, 4, 1, 1), problem["y"][:, :1].repeat(1, 4, 1)
    model = problem["model"]().double()
    w0 = mlp.flat(model)
    g = [mlp.loss_gradient(model, w0, problem["x"][i, 0].double(), problem["y"][i, 0]).numpy() for i in range(3)]
    size = len(w0)
    # A gradient that does not depend on w: A tiny, b far away.
    tiny = 1e-9
    toy = {
        "clients": [{"A": (np.eye(size) * tiny).tolist(), "b": (w0.numpy() - x / tiny).tolist(), "n": 1} for x in g],
        "x0": w0.tolist(),
        "tensors": [size - 1, 1],
        "rounds": ROUNDS,
        "steps": [4, 2, 3],
        "lr": 1e-7,
        "lr_decay": 1,
        "momentum": 0,
        "weight_decay": 0,
        "clip": None,
        "weighting": "samples",
    }
    moved = mlp.run(kind, ROUNDS, problem, {}) - w0
    want = quadratic.run(kind, toy, {})["x"][-1] - w0.numpy()
    assert torch.linalg.norm(moved) > 0
    np.testing.assert_allclose(moved.numpy(), want, atol=1e-5 * np.abs(want).max())
