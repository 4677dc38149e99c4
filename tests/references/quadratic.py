"""Every algorithm on federations of quadratics, in plain numpy, written from the formulas alone.

A problem is a dictionary:

    {"clients": [{"A": [[..]], "b": [..], "n": 30}, ...], "x0": [..], "tensors": [2, 1], "rounds": [[0, 1], [1, 2]],
     "steps": 2, "lr": 0.1, "lr_decay": 0.9, "momentum": 0, "weight_decay": 0.01, "clip": null,
     "weighting": "samples"}

Client i has the loss f_i(w) = (w - b)'A(w - b)/2 and uses its exact gradient in every step. `run` returns

    {"x": [model after each round], "server": {name: [state after each round]},
     "clients": {name: [{client: state} after each round]}, "locals": [{client: model} of each round],
     "consistency": [mean over the active of |w_i - x|^2 with x the new model]}

Nothing here is fast or general on purpose: one loop per family, states in dictionaries, no classes.
"""

import copy

import numpy as np


# ---------------------------------------------------------------------------------------------- small helpers
def gradient(problem, i, w):
    client = problem["clients"][i]
    return np.array(client["A"], float) @ (w - np.array(client["b"], float))


def loss(problem, i, w):
    client = problem["clients"][i]
    gap = w - np.array(client["b"], float)
    return 0.5 * gap @ np.array(client["A"], float) @ gap


def steps_of(problem, i):
    steps = problem["steps"]
    return steps[i] if isinstance(steps, list) else steps


def weights_of(problem, active):
    if problem["weighting"] == "uniform":
        return {i: 1 / len(active) for i in active}
    total = sum(problem["clients"][i]["n"] for i in active)
    return {i: problem["clients"][i]["n"] / total for i in active}


def clip(problem, v):
    if problem["clip"] is None:
        return v
    return v * min(1.0, problem["clip"] / (np.linalg.norm(v) + 1e-6))


def sgd(problem, lr, w, v, direction, decay):
    """One step. The clip comes first, the decay is added to it, the momentum buffer takes the sum."""
    d = clip(problem, direction) + decay * w
    v = problem["momentum"] * v + d
    return w - lr * v, v


def unit(v, eps):
    norm = np.linalg.norm(v)
    return np.zeros_like(v) if norm == 0 else v / (norm + eps)


def effective(k, momentum):
    """How many plain steps k momentum steps with a constant gradient are worth."""
    return (k - momentum * (1 - momentum**k) / (1 - momentum)) / (1 - momentum)


def slices(problem):
    ends = np.cumsum(problem["tensors"])
    return [slice(e - n, e) for e, n in zip(ends, problem["tensors"], strict=True)]


def begin(problem):
    x = np.array(problem["x0"], float)
    return x, {"x": [], "server": {}, "clients": {}, "locals": [], "consistency": []}


def note(out, x, local, server=None, clients=None):
    out["x"].append(x.copy())
    out["locals"].append({i: w.copy() for i, w in local.items()})
    out["consistency"].append(float(np.mean([np.sum((w - x) ** 2) for w in local.values()])))
    for name, value in (server or {}).items():
        out["server"].setdefault(name, []).append(copy.deepcopy(value))
    for name, value in (clients or {}).items():
        out["clients"].setdefault(name, []).append(copy.deepcopy(value))


def everybody(problem, value):
    return {i: np.array(value, float) for i in range(len(problem["clients"]))}


def mean_all(states):
    return sum(states.values()) / len(states)


# --------------------------------------------------------- FedAvg and everything without state on the clients
def averaging(problem, s, kind):
    """fedavg fedavgm fedadam fedyogi fedadagrad fedprox fedsam fedasam fedbabu."""
    x, out = begin(problem)
    m, v_server = np.zeros_like(x), np.zeros_like(x)
    if s.get("variant") == "paper" and kind in ("fedadam", "fedyogi", "fedadagrad"):
        v_server = v_server + s.get("tau", 1e-3) ** 2
    for t, active in enumerate(problem["rounds"]):
        lr = problem["lr"] * problem["lr_decay"] ** t
        p = weights_of(problem, active)
        local = {}
        for i in active:
            w, v = x.copy(), np.zeros_like(x)
            for _ in range(steps_of(problem, i)):
                g = gradient(problem, i, w)
                decay = problem["weight_decay"]
                if kind == "fedprox":
                    g = g + s["mu"] * (w - x)
                if kind == "fedsam":
                    g = gradient(problem, i, w + s["rho"] * unit(g, s.get("eps", 1e-12)))
                if kind == "fedasam":
                    if s.get("variant", "official") == "official":
                        scale, eps = np.abs(w), 1e-12
                    else:
                        scale, eps = np.abs(w) + s["eta"], 1e-16
                    e = s["rho"] * scale**2 * g / (np.linalg.norm(scale * g) + eps)
                    g = gradient(problem, i, w + e)
                if kind == "fedbabu":
                    free = np.ones_like(x)
                    free[slices(problem)[-1]] = 0
                    g, decay = g * free, decay * free
                w, v = sgd(problem, lr, w, v, g, decay)
            local[i] = w
        delta = sum(p[i] * (local[i] - x) for i in active)
        if kind == "fedavgm":
            m = s.get("server_momentum", 0.9) * m + delta
            x = x + s.get("server_lr", 1.0) * m
        elif kind in ("fedadam", "fedyogi", "fedadagrad"):
            b1 = s.get("beta1", 0 if kind == "fedadagrad" else 0.9)
            b2 = s.get("beta2", 0.99)
            tau = s.get("tau", 1e-3 if s.get("variant") == "paper" else 1e-2)
            m = b1 * m + (1 - b1) * delta
            if kind == "fedadam":
                v_server = b2 * v_server + (1 - b2) * delta**2
            if kind == "fedyogi":
                v_server = v_server - (1 - b2) * delta**2 * np.sign(v_server - delta**2)
            if kind == "fedadagrad":
                v_server = v_server + delta**2
            x = x + s.get("server_lr", 0.1) * m / (np.sqrt(v_server) + tau)
        else:
            x = x + s.get("server_lr", 1.0) * delta
        states = {}
        if kind in ("fedadam", "fedyogi", "fedadagrad"):
            states = {"m": m, "v": v_server}
        if kind == "fedavgm":
            states = {"v": m}
        note(out, x, local, states)
    return out


def fedsol(problem, s, kind):
    """FedSoL and its ablations with the squared distance, or the term of SCAFFOLD, FedNova or FedDyn.

    The proximal gradient is fixed + slope (w - x). The combined direction of a4 has no beta in it.
    """
    kind = s.get("variant", "a1")
    x, out = begin(problem)
    zero = np.zeros_like(x)
    c, ci = zero, everybody(problem, zero)
    d_mean, d = zero, everybody(problem, zero)
    h, hi = zero, everybody(problem, zero)
    proximal = s.get("proximal", "l2")
    alpha, beta, prox_scale = s.get("alpha", 0.1), s.get("beta", 1.0), s.get("prox_scale", 1.0)
    mask = np.ones_like(x)
    if s.get("on", "all") != "all":
        mask[slices(problem)[-1]] = 0
        if s["on"] == "head":
            mask = 1 - mask
    count = len(problem["clients"])
    for t, active in enumerate(problem["rounds"]):
        lr = problem["lr"] * problem["lr_decay"] ** t
        p = weights_of(problem, active)
        local = {}
        for i in active:
            if proximal == "l2":
                fixed, slope = zero, 1.0
            elif proximal == "scaffold":
                fixed, slope = c - ci[i], 0.0
            elif proximal == "fednova":
                fixed, slope = d_mean - d[i], 0.0
            else:  # feddyn
                fixed, slope = -hi[i], alpha
            fixed, slope = prox_scale * fixed, prox_scale * slope
            w, v = x.copy(), zero
            for _ in range(steps_of(problem, i)):
                gl, gp = gradient(problem, i, w), fixed + slope * (w - x)
                e = s["rho"] * unit(mask * gp, 1e-12)
                if s.get("radius", "fixed") != "fixed":
                    # tensors are flat here: the norm over axis 0 (adaptive) is the norm of the tensor (layer)
                    for piece in slices(problem):
                        gap = np.abs(w - x)[piece]
                        e[piece] = e[piece] * gap / max(np.linalg.norm(gap), 1e-12)
                if kind == "a4":
                    e = s["rho"] * unit(gl + gp, 1e-12)
                gl_there = gradient(problem, i, w + e)
                gp_there = fixed + slope * (w + e - x)
                if kind == "a1":
                    g = gl_there
                elif kind == "a0":
                    g = gl
                elif kind == "a2":
                    g = gl + beta * gp_there
                elif kind in ("a3", "a4"):
                    g = gl_there + beta * gp_there
                elif kind == "a5":
                    g = gl + beta * gp
                else:  # a6
                    g = gl_there + beta * gp
                w, v = sgd(problem, lr, w, v, g, problem["weight_decay"])
            local[i] = w
        k = {i: effective(steps_of(problem, i), problem["momentum"]) for i in active}
        mean = sum(p[i] * local[i] for i in active)
        if proximal == "scaffold":
            # The direction does not contain c - c_i, so the mean gradient is read off as it is.
            fresh = {i: (x - local[i]) / (k[i] * lr) for i in active}
            c = c + sum(fresh[i] - ci[i] for i in active) / count
            ci.update(fresh)
        if proximal == "fednova":
            d, d_mean = nova_directions(problem, d, d_mean, active, local, x, lr, k)
            mean = x - lr * sum(p[i] * k[i] for i in active) * sum(p[i] * d[i] for i in active)
        if proximal == "feddyn":
            for i in active:
                hi[i] = hi[i] - alpha * (local[i] - x)
                h = h - alpha / count * (local[i] - x)
            mean = mean - h / alpha
        x = mean
        note(out, x, local)
    return out


# ---------------------------------------------------------------------------------------------------- FedNova
def nova_directions(problem, d, d_mean, active, local, x, lr, a):
    """The clients' average gradients, and their running mean weighted by size over everybody."""
    total = sum(client["n"] for client in problem["clients"])
    share = {i: problem["clients"][i]["n"] / total for i in active}
    d = {**d, **{i: (x - local[i]) / (lr * a[i]) for i in active}}
    d_mean = (1 - sum(share.values())) * d_mean + sum(share[i] * d[i] for i in active)
    return d, d_mean


def fednova(problem, s, kind):
    x, out = begin(problem)
    d, d_mean = everybody(problem, np.zeros_like(x)), np.zeros_like(x)
    variant = s.get("variant", "nova")
    for t, active in enumerate(problem["rounds"]):
        lr = problem["lr"] * problem["lr_decay"] ** t
        p = weights_of(problem, active)
        a = {i: effective(steps_of(problem, i), problem["momentum"]) for i in active}
        local = {}
        for i in active:
            w, v = x.copy(), np.zeros_like(x)
            for _ in range(steps_of(problem, i)):
                g = gradient(problem, i, w)
                if variant == "ccvr":
                    g = g + d_mean - d[i]
                if variant == "official":  # the mean is never updated in the released code: it stays 0
                    g = g - d[i]
                w, v = sgd(problem, lr, w, v, g, problem["weight_decay"])
            local[i] = w
        d, d_mean = nova_directions(problem, d, d_mean, active, local, x, lr, a)
        x = x - lr * sum(p[i] * a[i] for i in active) * sum(p[i] * d[i] for i in active)
        note(out, x, local, {"d": d_mean}, {"d": d})
    return out


# ------------------------------------------------------------------------------------------- FedLESAM's memory
def lesam_shift(problem, variant, rho, i, x, memory, previous):
    """The perturbation of client i in a round that starts at x; it points at an older model, and is constant."""
    if variant in ("paper", "paper_init"):
        return rho * unit(memory[i] - x, 1e-7) if i in memory else np.zeros_like(x)
    if previous is None:
        return np.zeros_like(x)
    step = x - previous
    if variant == "last_round":
        return -rho * unit(step, 1e-7)
    if variant == "sum_norm":
        return -rho * step / (sum(np.linalg.norm(step[piece]) for piece in slices(problem)) + 1e-7)
    shift = np.zeros_like(x)  # official: tensor j is shifted by entry j of the flat update
    first = step[: len(problem["tensors"])]
    for j, piece in enumerate(slices(problem)):
        shift[piece] = -rho * first[j] / (np.sum(np.abs(first)) + 1e-7)
    return shift


def fedlesam(problem, s, kind):
    x, out = begin(problem)
    variant, previous = s.get("variant", "paper"), None
    memory = everybody(problem, x) if variant == "paper_init" else {}
    for t, active in enumerate(problem["rounds"]):
        lr = problem["lr"] * problem["lr_decay"] ** t
        p = weights_of(problem, active)
        local = {}
        for i in active:
            e = lesam_shift(problem, variant, s["rho"], i, x, memory, previous)
            w, v = x.copy(), np.zeros_like(x)
            for _ in range(steps_of(problem, i)):
                w, v = sgd(problem, lr, w, v, gradient(problem, i, w + e), problem["weight_decay"])
            local[i] = w
            memory[i] = x
        previous, x = x, sum(p[i] * local[i] for i in active)
        note(out, x, local)
    return out


# ------------------------------------------------------------------------------------------- control variates
def control(problem, s, kind):
    """scaffold fedgamma fedlesam_s."""
    x, out = begin(problem)
    c, ci = np.zeros_like(x), everybody(problem, np.zeros_like(x))
    variant, previous = s.get("variant", "paper"), None
    memory = everybody(problem, x) if variant == "paper_init" else {}
    for t, active in enumerate(problem["rounds"]):
        lr = problem["lr"] * problem["lr_decay"] ** t
        p = weights_of(problem, active)
        local, fresh = {}, {}
        for i in active:
            w, v = x.copy(), np.zeros_like(x)
            for _ in range(steps_of(problem, i)):
                g = gradient(problem, i, w)
                if kind == "fedgamma":
                    g = gradient(problem, i, w + s["rho"] * unit(g, s.get("eps", 1e-7)))
                if kind == "fedlesam_s":
                    g = gradient(problem, i, w + lesam_shift(problem, variant, s["rho"], i, x, memory, previous))
                w, v = sgd(problem, lr, w, v, g + s.get("control_scale", 1) * (c - ci[i]), problem["weight_decay"])
            k = steps_of(problem, i)
            if s.get("divisor", "effective") == "effective":
                k = effective(k, problem["momentum"])
            local[i] = w
            fresh[i] = ci[i] - c + (x - w) / (k * lr)
        for i in active:
            memory[i] = x
        c = c + sum(fresh[i] - ci[i] for i in active) / len(problem["clients"])
        ci.update(fresh)
        previous, x = x, sum(p[i] * local[i] for i in active)
        note(out, x, local, {"c": c}, {"c": ci})
    return out


def client_momentum(problem, s, kind):
    """fedcm mofedsam."""
    x, out = begin(problem)
    momentum, alpha = np.zeros_like(x), s.get("alpha", 0.1)
    for t, active in enumerate(problem["rounds"]):
        lr = problem["lr"] * problem["lr_decay"] ** t
        p = weights_of(problem, active)
        local = {}
        for i in active:
            w, v = x.copy(), np.zeros_like(x)
            for _ in range(steps_of(problem, i)):
                g = gradient(problem, i, w)
                if kind == "mofedsam":
                    g = gradient(problem, i, w + s["rho"] * unit(g, 1e-7))
                w, v = sgd(problem, lr, w, v, alpha * g + (1 - alpha) * momentum, problem["weight_decay"])
            local[i] = w
        k = {i: effective(steps_of(problem, i), problem["momentum"]) for i in active}
        momentum = -sum(p[i] * (local[i] - x) / (k[i] * lr) for i in active)
        x = sum(p[i] * local[i] for i in active)
        note(out, x, local, {"D": momentum})
    return out


# ------------------------------------------------------------------------------------- dynamic regularisation
def dynamic(problem, s, kind):
    """feddyn fedspeed fedsmoo fedlesam_d. The duals have the sign of a gradient: h_i <- h_i - alpha (w_i - x)."""
    x, out = begin(problem)
    alpha, rho = s.get("alpha", 0.1), s.get("rho", 0.1)
    variant = s.get("variant", "paper")
    official_order = variant in ("official", "early") or (
        kind == "fedlesam_d" and variant in ("last_round", "sum_norm")
    )
    hi, mu = everybody(problem, np.zeros_like(x)), everybody(problem, np.zeros_like(x))
    h, consensus, previous = np.zeros_like(x), np.zeros_like(x), None
    memory = everybody(problem, x) if variant == "paper_init" else {}
    for t, active in enumerate(problem["rounds"]):
        lr = problem["lr"] * problem["lr_decay"] ** t
        p = weights_of(problem, active)
        local, last = {}, {}
        for i in active:
            w, v = x.copy(), np.zeros_like(x)
            for _ in range(steps_of(problem, i)):
                g = gradient(problem, i, w)
                if kind == "fedspeed":
                    mix = s.get("mix", 1.0)
                    g = (1 - mix) * g + mix * gradient(problem, i, w + rho * unit(g, 1e-7))
                if kind == "fedlesam_d":
                    g = gradient(problem, i, w + lesam_shift(problem, variant, rho, i, x, memory, previous))
                if kind == "fedsmoo":
                    e = rho * unit(g - mu[i] - consensus, 1e-7)
                    mu[i] = mu[i] + e - consensus
                    last[i] = e
                    g = gradient(problem, i, w + e)
                if variant == "norm":  # the distance itself as the penalty, not its square
                    w, v = sgd(problem, lr, w, v, g - hi[i] + alpha / 2 * unit(w - x, 0.0), problem["weight_decay"])
                elif official_order:  # the pull towards x inside the clip, the pull towards 0 outside
                    w, v = sgd(problem, lr, w, v, g - hi[i] - alpha * x, problem["weight_decay"] + alpha)
                else:
                    w, v = sgd(problem, lr, w, v, g - hi[i] + alpha * (w - x), problem["weight_decay"])
            local[i] = w
            hi[i] = hi[i] - alpha * (w - x)
            memory[i] = x
        h = mean_all(hi)
        mean = sum(p[i] * local[i] for i in active)
        if kind == "fedspeed" and variant == "paper":
            new = mean - sum(hi[i] for i in active) / len(active) / alpha
        else:
            new = mean - h / alpha
        previous, x = x, new
        states, client_states = {"h": h}, {"h": hi}
        if kind == "fedsmoo":
            if variant == "early":
                consensus = rho * unit(-mean_all(mu), 1e-8)
            elif variant == "paper":
                consensus = rho * unit(sum(mu[i] - last[i] for i in active) / len(active), 0.0)
            else:
                consensus = rho * unit(sum(mu[i] for i in active) / len(active), 1e-7)
            states["s"], client_states["mu"] = consensus, mu
        note(out, x, local, states, client_states)
    return out


def feddc(problem, s, kind):
    """`paper`: the drift is added per active client, the last displacements are compared as they are.

    `official`: as released: a control variate as in SCAFFOLD, and the mean drift of all clients on the server.
    """
    x, out = begin(problem)
    alpha, official = s.get("alpha", 0.1), s.get("variant", "paper") == "official"
    h, gi = everybody(problem, np.zeros_like(x)), everybody(problem, np.zeros_like(x))
    g_mean = np.zeros_like(x)
    for t, active in enumerate(problem["rounds"]):
        lr = problem["lr"] * problem["lr_decay"] ** t
        p = weights_of(problem, active)
        local, fresh = {}, {}
        for i in active:
            w, v = x.copy(), np.zeros_like(x)
            for _ in range(steps_of(problem, i)):
                g = gradient(problem, i, w) + alpha * (w - x + h[i]) + g_mean - gi[i]
                w, v = sgd(problem, lr, w, v, g, problem["weight_decay"])
            local[i] = w
            k = effective(steps_of(problem, i), problem["momentum"])
            fresh[i] = (x - w) / (k * lr) + (gi[i] - g_mean if official else 0)
            h[i] = h[i] + w - x
        if official:
            g_mean = g_mean + sum(fresh[i] - gi[i] for i in active) / len(problem["clients"])
            x = sum(p[i] * local[i] for i in active) + mean_all(h)
        else:
            g_mean = sum(p[i] * fresh[i] for i in active)
            x = sum(p[i] * (local[i] + h[i]) for i in active)
        gi.update(fresh)
        note(out, x, local, {"g": g_mean}, {"h": h, "g": gi})
    return out


# ------------------------------------------------------------------------------------------------ newer methods
def fednsam(problem, s, kind):
    x, out = begin(problem)
    m, gamma, rho = np.zeros_like(x), s.get("gamma", 0.85), s.get("rho", 0.05)
    variant = s.get("variant", "intended")
    for t, active in enumerate(problem["rounds"]):
        lr = problem["lr"] * problem["lr_decay"] ** t
        p = weights_of(problem, active)
        local = {}
        start = x if variant == "per_step" else x + gamma * m
        for i in active:
            w, v = start.copy(), np.zeros_like(x)
            for _ in range(steps_of(problem, i)):
                if variant == "per_step":
                    g = gradient(problem, i, w + gamma * m - rho * unit(m, 1e-7))
                else:
                    g = gradient(problem, i, w + rho * unit(gradient(problem, i, w), 1e-12))
                w, v = sgd(problem, lr, w, v, g, problem["weight_decay"])
            local[i] = w
        delta = sum(p[i] * (local[i] - start) for i in active)
        if variant == "released":
            m = delta if t == 0 else (1 + gamma) * delta
        else:
            m = gamma * m + delta
        x = x + m
        note(out, x, local, {"m": m})
    return out


def fedgloss(problem, s, kind):
    x, out = begin(problem)
    beta, count = s.get("beta", 10), len(problem["clients"])
    sigma, sigmas, pseudo = np.zeros_like(x), everybody(problem, np.zeros_like(x)), None
    for t, active in enumerate(problem["rounds"]):
        lr = problem["lr"] * problem["lr_decay"] ** t
        p = weights_of(problem, active)
        start = x if pseudo is None else x + s["rho"] * unit(pseudo, 0.0)
        local = {}
        for i in active:
            w, v = start.copy(), np.zeros_like(x)
            for _ in range(steps_of(problem, i)):
                g = gradient(problem, i, w + s["rho_client"] * unit(gradient(problem, i, w), 1e-16))
                g = g - sigmas[i] + (w - start) / beta
                w, v = sgd(problem, lr, w, v, g, problem["weight_decay"])
            local[i] = w
        for i in active:
            sigmas[i] = sigmas[i] - (local[i] - start) / beta
        pseudo = -sum(p[i] * (local[i] - start) for i in active)
        divisor = beta * count * (len(active) if s.get("variant", "paper") == "official" else 1)
        sigma = sigma - sum(local[i] - start for i in active) / divisor
        x = x - pseudo - beta * sigma  # from the unperturbed model
        note(out, x, local, {"sigma": sigma}, {"sigma": sigmas})
    return out


def fedscar(problem, s, kind):
    """As released; variant `poster` has the printed dual, `lagged` the mean bias of the round before.

    h adds up displacements and b keeps the sign of the formulas; every round b shrinks for inactive clients too.
    """
    x, out = begin(problem)
    alpha, keep, beta, rho = s.get("alpha", 0.01), s.get("keep", 0.9), s.get("beta", 0.01), s.get("rho", 0)
    dual = s.get("dual", "literal" if s.get("variant") == "poster" else "code")
    h, b = everybody(problem, np.zeros_like(x)), everybody(problem, np.zeros_like(x))
    size, last, update = dict.fromkeys(h, 0.0), {}, {}
    b_mean = np.zeros_like(x)
    for t, active in enumerate(problem["rounds"]):
        lr = problem["lr"] * problem["lr_decay"] ** t
        p = weights_of(problem, active)
        lagged = b_mean
        for i in b:
            b[i] = keep * b[i]
        start = {}
        for i in active:
            if i in last:
                b[i] = b[i] + size[i] * unit(x - last[i], 0.0)
            start[i] = x + b[i]
        b_mean = mean_all(b)
        local = {}
        for i in active:
            anchor = {"last": last.get(i, start[i]), "global": x, "start": start[i]}[s.get("anchor", "last")]
            shift = (lagged if s.get("variant") == "lagged" else b_mean) - b[i]
            w, v = start[i].copy(), np.zeros_like(x)
            for _ in range(steps_of(problem, i)):
                g = gradient(problem, i, w)
                if rho:
                    g = gradient(problem, i, w + rho * unit(g, 1e-7))
                if s.get("prox", "norm") == "norm":
                    g = g + beta / 2 * unit(w - anchor, 0.0)
                if s.get("prox", "norm") == "square":
                    g = g + beta * (w - anchor)
                w, v = sgd(problem, lr, w, v, g + beta * (h[i] + b[i]) + shift, problem["weight_decay"])
            local[i] = w
        mean = sum(p[i] * local[i] for i in active)
        for i in active:
            update[i] = local[i] - start[i]
            last[i] = local[i]
            if dual == "code":
                h[i] = h[i] + update[i]
            if dual == "flipped":
                h[i] = h[i] - update[i]
            if dual == "scaled":
                h[i] = h[i] + update[i] / (lr * steps_of(problem, i))
        spread = alpha / len(b) * sum(np.linalg.norm(u - (mean - x)) for u in update.values())
        for i in active:
            size[i] = spread if s.get("scale", "const") == "var" else alpha
        x = mean + beta * (mean_all(h) - b_mean)
        for i in active:  # the poster's dual wants the new model, so the server step above used the old duals
            if dual == "literal":
                h[i] = h[i] + (x - local[i]) / (lr * steps_of(problem, i))
            if dual == "literal_minus":
                h[i] = h[i] - (x - local[i]) / (lr * steps_of(problem, i))
        total = sum(problem["clients"][i]["n"] for i in active)
        gap = sum(problem["clients"][i]["n"] * (loss(problem, i, x) - loss(problem, i, local[i])) for i in active)
        out.setdefault("flatness_discrepancy", []).append(abs(gap) / total)
        out.setdefault("s", []).append(size[active[0]])
        note(out, x, local, {"bbar": b_mean}, {"h": h, "b": b})
    return out


def fedgf(problem, s, kind):
    """As released. The window is a list of booleans; the perturbed model is unknown before the first aggregation."""
    x, out = begin(problem)
    perturbed, c, window = None, 0.0, []
    for t, active in enumerate(problem["rounds"]):
        lr = problem["lr"] * problem["lr_decay"] ** t
        p = weights_of(problem, active)
        local = {}
        for i in active:
            w, v = x.copy(), np.zeros_like(x)
            for _ in range(steps_of(problem, i)):
                there = w + s["rho"] * unit(gradient(problem, i, w), 1e-16)
                if perturbed is not None:
                    there = (1 - c) * there + c * perturbed
                w, v = sgd(problem, lr, w, v, gradient(problem, i, there), problem["weight_decay"])
            local[i] = w
        distance = np.mean([np.linalg.norm(local[i] - x) for i in active])
        window = [*window, distance > s["threshold"]][-s["window"] :]
        c = sum(window) / len(window)
        new = sum(p[i] * local[i] for i in active)
        perturbed = new + s.get("rho_global", s["rho"]) * unit(x - new, 0.0)
        x = new
        note(out, x, local, {"point": perturbed, "c": c})
    return out


def cycled(problem, s, kind):
    """fedswa fedmoswa. The rate falls in a line within the round; the divisor is what the steps add up to.

    `official` of fedmoswa is what the published command runs, with the variates of each client kept apart.
    """
    x, out = begin(problem)
    official = s.get("variant", "paper") == "official"
    defaults = {"end": 0.1, "server_lr": 1.5, "gamma": 0.2}
    if official:
        defaults = {"end": 1.0 if kind == "fedmoswa" else 0.0, "server_lr": 1.0, "gamma": 0.4}
    s = {**defaults, **s}
    top = 2.0 if official and kind == "fedswa" else 1.0
    m, ci = np.zeros_like(x), everybody(problem, np.zeros_like(x))
    for t, active in enumerate(problem["rounds"]):
        lr = problem["lr"] * problem["lr_decay"] ** t
        p = weights_of(problem, active)
        local, fresh = {}, {}
        for i in active:
            w, v, count = x.copy(), np.zeros_like(x), steps_of(problem, i)
            path, pushed = 0.0, 0.0  # how far a constant gradient of 1 would have come, and its momentum
            for k in range(count):
                rate = lr * top * ((1 - k / count) + k / count * s["end"])
                g = gradient(problem, i, w)
                if kind == "fedmoswa":
                    g = g - ci[i] + m
                w, v = sgd(problem, rate, w, v, g, problem["weight_decay"])
                pushed = problem["momentum"] * pushed + 1
                path = path + rate * pushed
            local[i] = w
            fresh[i] = ci[i] - m + (x - w) / path
        if kind == "fedmoswa":
            gap = sum(fresh[i] - m for i in active) / len(active)
            m = m + (1.0 if official and t == 0 else s["gamma"]) * gap
            ci.update(fresh)
        x = x + s["server_lr"] * sum(p[i] * (local[i] - x) for i in active)
        note(out, x, local, {"c": m}, {"c": ci})
    return out


def fedwmsam(problem, s, kind):
    """`paper`: the printed ascent, with the momentum signed like a gradient. `text`: away from the inferred model.

    `official`: the other sign, and one entry of the flat gap for each tensor. The rule of alpha goes with it unless
    `aligned` says otherwise.
    """
    x, out = begin(problem)
    variant, rho = s.get("variant", "paper"), s.get("rho", 0.01)
    aligned, adapt = s.get("aligned", variant != "official"), s.get("adapt", 0.01)
    alpha, momentum = s.get("alpha", 0.1), np.zeros_like(x)
    c, ci = np.zeros_like(x), everybody(problem, np.zeros_like(x))
    for t, active in enumerate(problem["rounds"]):
        lr = problem["lr"] * problem["lr_decay"] ** t
        p = weights_of(problem, active)
        local, fresh, slopes, values = {}, {}, [], []
        for i in active:
            own = momentum + alpha / (1 - alpha) * (c - ci[i])
            w, v = x.copy(), np.zeros_like(x)
            for b in range(steps_of(problem, i)):
                gap = (x + b * own) - w
                if variant == "paper":
                    e = rho * unit(gap, 1e-7)
                elif variant == "text":
                    e = rho * unit(w - (x - lr * b * own), 1e-7)
                else:
                    e, first = np.zeros_like(x), gap[: len(problem["tensors"])]
                    for j, piece in enumerate(slices(problem)):
                        e[piece] = -rho * first[j] / (np.sum(np.abs(first)) + 1e-7)
                g = alpha * gradient(problem, i, w + e) + (1 - alpha) * own
                w, v = sgd(problem, lr, w, v, g, problem["weight_decay"])
            local[i] = w
            moved = w - x
            slope = -moved / (effective(steps_of(problem, i), problem["momentum"]) * lr)
            fresh[i] = ci[i] - c + slope
            slopes.append(slope)
            product = np.linalg.norm(moved) * np.linalg.norm(momentum)
            sign = -1 if aligned else 1
            values.append(1 + sign * moved @ momentum / product if product > 0 else 0.0)
        c = c + sum(fresh[i] - ci[i] for i in active) / len(problem["clients"])
        ci.update(fresh)
        momentum = s.get("scale", 1.0) * sum(slopes) / len(active)
        alpha = (1 - adapt) * alpha + adapt * min(0.9, max(0.1, np.mean(values)))
        x = sum(p[i] * local[i] for i in active)
        note(out, x, local, {"M": momentum, "c": c, "alpha": alpha}, {"c": ci})
    return out


# -------------------------------------------------------------------------------------------------- of our own
def takyr(problem, s, kind):
    """A dual and no isotropic pull; gradients further away from x; the running mean in out["server"]["e"].

    The ascent of coordinate k of a tensor (a vector here): rho |d_k| d_k / (|d of the tensor| |d|) with d = w - x.
    """
    x, out = begin(problem)
    rho, alpha, keep = s.get("rho", 1.0), s.get("alpha", 0.041), s.get("keep", 0.9)
    e, h = x.copy(), everybody(problem, np.zeros_like(x))
    for t, active in enumerate(problem["rounds"]):
        lr = problem["lr"] * problem["lr_decay"] ** t
        p = weights_of(problem, active)
        local = {}
        for i in active:
            w, v = x.copy(), np.zeros_like(x)
            for k in range(steps_of(problem, i)):
                d, ascent, at = w - x, np.zeros_like(x), 0
                for size in problem["tensors"] if k else ():  # at first w = x, and there is no ascent
                    own = d[at : at + size]
                    ascent[at : at + size] = rho * np.abs(own) * own / np.linalg.norm(own) / np.linalg.norm(d)
                    at += size
                w, v = sgd(problem, lr, w, v, gradient(problem, i, w + ascent) - h[i], problem["weight_decay"])
            local[i] = w
            h[i] = h[i] - alpha * (w - x)
        x = sum(p[i] * local[i] for i in active) - mean_all(h) / alpha
        e = keep * e + (1 - keep) * x
        note(out, x, local, {"e": e, "h": mean_all(h)}, {"h": h})
    return out


# --------------------------------------------------------------------------------------------- personalisation
def perfedavg(problem, s, kind):
    """First order. One step is one meta-iteration; the inner rate is the round's rate unless it is set."""
    x, out = begin(problem)
    for t, active in enumerate(problem["rounds"]):
        inner = s.get("inner_lr", problem["lr"]) * problem["lr_decay"] ** t
        p = weights_of(problem, active)
        local = {}
        for i in active:
            w, v = x.copy(), np.zeros_like(x)
            for _ in range(steps_of(problem, i)):
                if s.get("variant", "clean") == "clean":  # the inner move has decay but no momentum
                    ahead, _ = sgd(
                        problem, inner, w, np.zeros_like(x), gradient(problem, i, w), problem["weight_decay"]
                    )
                else:  # one buffer takes both gradients
                    ahead, v = sgd(problem, inner, w, v, gradient(problem, i, w), problem["weight_decay"])
                w, v = sgd(problem, s["outer_lr"], w, v, gradient(problem, i, ahead), problem["weight_decay"])
            local[i] = w
        x = sum(p[i] * local[i] for i in active)
        note(out, x, local)
    return out


def local_only(problem, s, kind):
    """Nothing is sent: every client keeps its model and its momentum; the global model stays where it was."""
    x, out = begin(problem)
    w, v = everybody(problem, x), everybody(problem, np.zeros_like(x))
    for t, active in enumerate(problem["rounds"]):
        lr = problem["lr"] * problem["lr_decay"] ** t
        for i in active:
            for _ in range(steps_of(problem, i)):
                w[i], v[i] = sgd(problem, lr, w[i], v[i], gradient(problem, i, w[i]), problem["weight_decay"])
        note(out, x, {i: w[i] for i in active}, None, {"w": w})
    return out


# ------------------------------------------------------- parts: another start, another model that is evaluated
def relaxed_start(problem, s, kind):
    """FedInit: start beyond x, away from the client's own last model; displacements count from that start.

    `official` adds the mean displacement to x, `paper` takes the mean of the clients' models.
    """
    x, out = begin(problem)
    last = everybody(problem, x)
    for t, active in enumerate(problem["rounds"]):
        lr = problem["lr"] * problem["lr_decay"] ** t
        p = weights_of(problem, active)
        start = {i: x + s.get("beta", 0.1) * (x - last[i]) for i in active}
        local = {}
        for i in active:
            w, v = start[i].copy(), np.zeros_like(x)
            for _ in range(steps_of(problem, i)):
                w, v = sgd(problem, lr, w, v, gradient(problem, i, w), problem["weight_decay"])
            local[i] = w
        last.update(local)
        if s.get("variant", "official") == "official":
            x = x + sum(p[i] * (local[i] - start[i]) for i in active)
        else:
            x = sum(p[i] * local[i] for i in active)
        note(out, x, local, None, {"last": last})
    return out


def evaluated(problem, s, kind):
    """fedavg, with what is evaluated in out["evaluated"]: swa, ema, latest_mean."""
    out = averaging(problem, s, "fedavg")
    x0, total = np.array(problem["x0"], float), len(problem["rounds"])
    average, n, shown = x0.copy(), 0, []
    latest = everybody(problem, x0)
    for t, x in enumerate(out["x"]):
        if kind == "ema":
            average = s.get("keep", 0.99) * average + (1 - s.get("keep", 0.99)) * x
            shown.append(average.copy())
        if kind == "swa":
            start = int(s.get("start", 0.75) * total)
            if t > start and (t - start) % s.get("cycle", 10) == 0:
                average = average * n / (n + 1) + x / (n + 1)
                n += 1
            shown.append(average.copy() if n else x.copy())
        if kind == "latest_mean":
            latest.update(out["locals"][t])
            shown.append(mean_all(latest))
    out["evaluated"] = shown
    return out


FAMILIES = {
    averaging: "fedavg fedavgm fedadam fedyogi fedadagrad fedprox fedsam fedasam fedbabu",
    fedsol: "fedsol fedsol_ablation",
    fednova: "fednova",
    fedlesam: "fedlesam",
    control: "scaffold fedgamma fedlesam_s",
    client_momentum: "fedcm mofedsam",
    dynamic: "feddyn fedspeed fedsmoo fedlesam_d",
    feddc: "feddc",
    fednsam: "fednsam",
    fedgloss: "fedgloss",
    fedscar: "fedscar",
    fedgf: "fedgf",
    cycled: "fedswa fedmoswa",
    fedwmsam: "fedwmsam",
    takyr: "takyr",
    perfedavg: "perfedavg",
    local_only: "local",
    relaxed_start: "relaxed_start",
    evaluated: "swa ema latest_mean",
}
ALGORITHMS = {name: family for family, names in FAMILIES.items() for name in names.split()}


def run(algorithm, problem, settings):
    return ALGORITHMS[algorithm](problem, settings, algorithm)
