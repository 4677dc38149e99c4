"""Combinations that people run, on a small network in plain PyTorch: one loop, flat vectors, float64, no optimizer.

`run(recipe, x0, gradient, batches, calls, sizes)` returns the trained and the judged model after each round.

    recipe    a dict: which ideas are in, by name, with their numbers (see the code)
    gradient  (w, batch, man) -> the gradient of the loss, plus man/2 times the mean square of the activations
    batches   (round, client) -> its batches, in order
    calls     the clients of each round; nobody is a round without change
    sizes     samples of each client
"""

import torch


def run(r, x0, gradient, batches, calls, sizes):
    n, zero = len(sizes), torch.zeros_like(x0)
    x, ema = x0.clone(), x0.clone()
    c, ci = zero, [zero] * n
    h, hi = zero, [zero] * n
    s, mu = zero, [zero] * n  # FedSMOO
    old = [None] * n  # FedLESAM
    last = [x0] * n  # the relaxed start
    D = zero  # FedCM
    velocity = zero  # the server's momentum
    e, back = x0.clone(), zero  # the server's ascent
    trained, judged = [], []
    alpha, rho = r.get("alpha"), r.get("rho", 0.0)
    dual_on = torch.ones_like(x0)  # 1 where there is a dual
    dual_on[: len(x0) - r.get("last", len(x0))] = 0.0

    for t, active in enumerate(calls):
        lr = r["lr"] * r.get("lr_decay", 1.0) ** t
        moves, ways, variates, q, counts = {}, {}, {}, {}, {}
        sent_x = x
        if "shift" in r:
            way_back = e - x if r["shift"] == "mean" else back
            sent_x = x + rho * way_back / (way_back.norm() + 1e-7)
        for i in active:
            start = sent_x + r.get("beta", 0.0) * (x - last[i])
            w, v, worth, stride = start.clone(), zero, 0.0, 0.0
            todo = list(batches(t, i))
            for k, batch in enumerate(todo):

                def g(at, batch=batch):
                    return gradient(at, batch, r.get("man", 0.0))

                if "sam" in r:
                    u = g(w)
                    u = g(w + rho * u / (u.norm() + r["sam"]))
                elif "lesam" in r:
                    away = zero if old[i] is None else old[i] - x
                    u = g(w + rho * away / (away.norm() + 1e-7))
                elif "curved" in r:  # up the distance from x, scaled by each output's share of its row's way
                    away = w - x
                    if away.norm() <= 1e-12:
                        u = g(w)
                    else:
                        share, begin = [], 0
                        for shape in r["curved"]:
                            piece = away[begin : begin + shape.numel()].reshape(shape)
                            begin += shape.numel()
                            share.append((piece.abs() / (piece**2).sum(0).sqrt().clamp(min=1e-12)).reshape(-1))
                        u = g(w + rho * torch.cat(share) * away / (away.norm() + 1e-12))
                elif "smoo" in r:
                    e_i = g(w) - mu[i] - s
                    e_i = rho * e_i / (e_i.norm() + 1e-7)
                    mu[i] = mu[i] + e_i - s
                    u, q[i] = g(w + e_i), mu[i] - e_i
                else:
                    u = g(w)
                if "variates" in r:
                    u = u + c - ci[i]
                if "cm" in r:
                    u = r["cm"] * u + (1 - r["cm"]) * D
                if "mu" in r:
                    u = u + r["mu"] * (w - x)
                extra = r.get("decay", 0.0)
                if alpha and r.get("order") == "official":
                    u, extra = u - hi[i] - alpha * start, extra + alpha
                elif alpha:
                    u = u - hi[i] + (0.0 if r.get("order") == "none" else alpha) * dual_on * (w - start)
                if "clip" in r:
                    u = u * min(1.0, r["clip"] / (float(u.norm()) + 1e-6))
                v = r.get("momentum", 0.0) * v + u + extra * w
                stride = r.get("momentum", 0.0) * stride + 1
                rate = 1 - k / len(todo) * (1 - r.get("end", 1.0))  # falls within the round
                worth += stride * rate
                w = w - lr * rate * v
            way = (start - w) / (lr * worth)
            ways[i], counts[i] = way, worth
            move, taken = w - start, 1.0
            if alpha:
                dual = hi[i] - alpha * dual_on * move
            if "variates" in r:
                variates[i] = way - c  # c_i⁺ − c_i
            up = move - dual / alpha if r.get("over") == "active" else move
            if "bound" in r:
                sent = [up] + ([variates[i]] if "variates" in r else [])
                taken = min(1.0, r["bound"] / float(torch.cat(sent).norm()))
            moves[i] = taken * up
            if alpha:
                hi[i] = dual if r.get("over") == "active" else hi[i] - taken * alpha * dual_on * move
            if "variates" in r:
                variates[i] = taken * variates[i]
                ci[i] = ci[i] + variates[i]
            if "lesam" in r:
                old[i] = x
            last[i] = w
        if active:
            weight = {i: float(sizes[i]) if r.get("weighting") == "samples" else 1.0 for i in active}
            total = sum(weight.values())
            delta = sum(weight[i] / total * moves[i] for i in active)
            if "nova" in r:
                delta = sum(weight[i] / total * moves[i] / counts[i] for i in active)
                delta = delta * sum(weight[i] / total * counts[i] for i in active)
            if "cm" in r:
                D = sum(weight[i] / total * ways[i] for i in active)
            if "variates" in r:
                c = c + sum(variates[i] for i in active) / n
            if "smoo" in r:
                q = sum(q[i] for i in active) / len(active)
                s = rho * q / q.norm()
            if alpha and r.get("over") != "active":
                h = h - alpha * dual_on * sum(moves[i] for i in active) / n
                delta = delta - h / alpha
            if "server_momentum" in r:
                velocity = r["server_momentum"] * velocity + delta
                delta = velocity
            x, back = x + delta, -delta
            e = 0.9 * e + 0.1 * x
            ema = r["ema"] * ema + (1 - r["ema"]) * x if "ema" in r else x
        trained.append(x)
        judged.append(ema if "ema" in r else x)
    return trained, judged
