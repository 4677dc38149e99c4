"""Federations of a tiny network, in plain PyTorch: one long loop, flat vectors, float64, no optimizer.

`run(kind, rounds, problem, settings)` returns the global model after the last round as one flat vector.

    kind      fedavg fedprox fedsam fedasam scaffold feddyn fedadam fedntd moon fedsol fedgmt man
    rounds    the active clients of each round, [[0, 1], [2, 0], ...]; a number means everybody, so often
    problem   "model": a function that returns a fresh nn.Sequential whose last layer is the head
              "x", "y": batches, (clients, steps, batch, features) and (clients, steps, batch)
              "mask": (clients, steps), or (clients, steps, batch): a step without a sample is no step at all
              "weights": one number a client; "lr", "momentum", "decay"
              and, where wanted, "lr_decay" (1) and "clip" (none)
    settings  those of the algorithm

Every client uses the same batches in every round. The global model of round 0 is one call of "model".
"""

import copy

import torch
from torch import nn
from torch.nn import functional as F


def flat(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).clone()


def load(model, vector):
    start = 0
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(vector[start : start + p.numel()].reshape(p.shape))
            start += p.numel()


def forward(model, w, x):
    """Logits, the features the head sees, and what comes out of every ReLU."""
    load(model, w)
    after_relu = []
    layers = list(model)
    for layer in layers[:-1]:
        x = layer(x)
        if isinstance(layer, nn.ReLU):
            after_relu.append(x)
    return layers[-1](x), x, after_relu


def gradient(model, loss):
    parts = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    parameters = list(model.parameters())
    parts = [torch.zeros_like(p) if g is None else g for g, p in zip(parts, parameters, strict=True)]
    return torch.cat([g.reshape(-1) for g in parts]).detach()


def logits_of(model, w, x):
    with torch.no_grad():
        return forward(model, w, x)[0].clone()


def kl(teacher, student, tau):
    """Batch mean of KL(teacher || student), softened by tau, without tau squared."""
    q = torch.softmax(teacher / tau, 1)
    return (q * (torch.log_softmax(teacher / tau, 1) - torch.log_softmax(student / tau, 1))).sum() / len(student)


def loss_gradient(model, w, x, y):
    return gradient(model, F.cross_entropy(forward(model, w, x)[0], y))


def run(kind, rounds, problem, settings):
    s = settings
    model = copy.deepcopy(problem["model"]()).double()
    X, Y, mask = problem["x"].double(), problem["y"], problem["mask"].bool()
    clients, steps = X.shape[0], X.shape[1]
    if isinstance(rounds, int):
        rounds = [list(range(clients))] * rounds
    weights = [float(p) for p in problem["weights"]]
    mu = problem["momentum"]

    w_global = flat(model)
    zero = torch.zeros_like(w_global)
    in_head = {id(p) for p in list(model)[-1].parameters()}
    head = torch.cat([torch.full((p.numel(),), float(id(p) in in_head)) for p in model.parameters()]).double()
    is_weight = torch.cat(
        [torch.full((p.numel(),), float("weight" in name)) for name, p in model.named_parameters()]
    ).double()

    c, ci = zero.clone(), [zero.clone() for _ in range(clients)]  # SCAFFOLD
    h, hi = zero.clone(), [zero.clone() for _ in range(clients)]  # FedDyn, FedGMT
    m, v_server = zero.clone(), zero.clone()  # FedAdam
    if kind == "fedadam" and s.get("variant") == "paper":
        v_server = v_server + s.get("tau", 1e-3) ** 2
    previous = [w_global.clone() for _ in range(clients)]  # MOON
    average = w_global.clone()  # FedGMT

    for t, active in enumerate(rounds):
        lr = problem["lr"] * problem.get("lr_decay", 1.0) ** t
        total = sum(weights[i] for i in active)
        local, done = {}, {}
        for i in active:
            w, v = w_global.clone(), zero.clone()
            done[i] = 0
            for k in range(steps):
                here = mask[i, k] if mask.dim() == 3 else mask[i, k].expand(X.shape[2])
                if not here.any():
                    continue
                x, y = X[i, k][here], Y[i, k][here]

                if kind in ("fedavg", "fedadam"):
                    u = loss_gradient(model, w, x, y)

                elif kind == "fedprox":
                    u = loss_gradient(model, w, x, y) + s.get("mu", 1.0) * (w - w_global)

                elif kind == "fedsam":
                    g = loss_gradient(model, w, x, y)
                    u = loss_gradient(model, w + s.get("rho", 0.1) * g / (g.norm() + s.get("eps", 1e-12)), x, y)

                elif kind == "fedasam":
                    g = loss_gradient(model, w, x, y)
                    if s.get("variant", "official") == "official":
                        scale, eps = w.abs(), 1e-12
                    else:
                        scale, eps = is_weight * (w.abs() + s.get("eta", 0.0)) + (1 - is_weight), 1e-16
                    e = s.get("rho", 1.0) * scale**2 * g / ((scale * g).norm() + eps)
                    u = loss_gradient(model, w + e, x, y)

                elif kind == "scaffold":
                    u = loss_gradient(model, w, x, y) - ci[i] + c

                elif kind == "feddyn":
                    u = loss_gradient(model, w, x, y) - hi[i] + s.get("alpha", 0.1) * (w - w_global)

                elif kind == "fedntd":
                    tau = s.get("tau", 1.0)
                    teacher = logits_of(model, w_global, x)
                    z = forward(model, w, x)[0]
                    other = ~F.one_hot(y, z.shape[1]).bool()
                    rest = (len(y), z.shape[1] - 1)
                    penalty = kl(teacher[other].reshape(rest), z[other].reshape(rest), tau)
                    u = gradient(model, F.cross_entropy(z, y) + s.get("beta", 1.0) * tau**2 * penalty)

                elif kind == "moon":
                    with torch.no_grad():
                        f_global = forward(model, w_global, x)[1].clone()
                        f_previous = forward(model, previous[i], x)[1].clone()
                    z, f, _ = forward(model, w, x)
                    near = torch.exp(F.cosine_similarity(f, f_global, dim=1, eps=1e-8) / s.get("tau", 0.5))
                    far = torch.exp(F.cosine_similarity(f, f_previous, dim=1, eps=1e-8) / s.get("tau", 0.5))
                    penalty = -torch.log(near / (near + far)).mean()
                    u = gradient(model, F.cross_entropy(z, y) + s.get("mu", 0.1) * penalty)

                elif kind == "fedsol":
                    tau = s.get("tau", 3.0)
                    teacher = logits_of(model, w_global, x)
                    gp = gradient(model, kl(teacher, forward(model, w, x)[0], tau))
                    gp = gp * {"all": torch.ones_like(head), "head": head, "body": 1 - head}[s.get("on", "all")]
                    e = s.get("rho", 1.0) * gp / (gp.norm() + 1e-12)
                    if done[i] == 0 or gp.norm() < 1e-6:  # safe: the first direction would be rounding noise
                        e = zero
                    u = loss_gradient(model, w + e, x, y)

                elif kind == "fedgmt":
                    tau = s.get("tau", 3.0)
                    teacher = logits_of(model, average, x)
                    z = forward(model, w, x)[0]
                    loss = F.cross_entropy(z, y) + s.get("weight", 1.0) * tau**2 * kl(teacher, z, tau)
                    u = gradient(model, loss) + hi[i] / s.get("beta", 10.0)

                elif kind == "man":
                    z, _, after_relu = forward(model, w, x)
                    penalty = sum((a**2).mean() for a in after_relu)
                    u = gradient(model, F.cross_entropy(z, y) + s.get("weight", 0.1) / 2 * penalty)

                else:
                    raise ValueError(kind)

                if problem.get("clip") is not None:
                    u = u * min(1.0, problem["clip"] / (float(u.norm()) + 1e-6))
                v = mu * v + u + problem["decay"] * w
                w = w - lr * v
                done[i] += 1
            local[i] = w

        mean = sum(weights[i] / total * local[i] for i in active)

        if kind == "scaffold":
            change = zero.clone()
            for i in active:
                k = done[i]
                if s.get("divisor", "effective") == "effective":
                    k = (k - mu * (1 - mu**k) / (1 - mu)) / (1 - mu)
                if done[i]:
                    fresh = ci[i] - c + (w_global - local[i]) / (k * lr)
                    change = change + fresh - ci[i]
                    ci[i] = fresh
            c = c + change / clients

        if kind == "feddyn":
            for i in active:
                hi[i] = hi[i] - s.get("alpha", 0.1) * (local[i] - w_global)
                h = h - s.get("alpha", 0.1) * (local[i] - w_global) / clients
            mean = mean - h / s.get("alpha", 0.1)

        if kind == "fedadam":
            delta = mean - w_global
            m = s.get("beta1", 0.9) * m + (1 - s.get("beta1", 0.9)) * delta
            v_server = s.get("beta2", 0.99) * v_server + (1 - s.get("beta2", 0.99)) * delta**2
            tau = s.get("tau", 1e-3 if s.get("variant") == "paper" else 1e-2)
            mean = w_global + s.get("server_lr", 0.1) * m / (v_server.sqrt() + tau)

        if kind == "moon":
            for i in active:
                previous[i] = local[i].clone()

        if kind == "fedgmt":
            for i in active:
                hi[i] = hi[i] + local[i] - w_global
            if s.get("variant", "official") == "official":
                mean = mean + sum(hi) / clients
            else:
                mean = sum(local[i] + hi[i] for i in active) / len(active)
            average = s.get("keep", 0.95) * average + (1 - s.get("keep", 0.95)) * mean

        w_global = mean
    return w_global
