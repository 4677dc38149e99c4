"""Small classifiers in plain numpy: losses and their gradients written out by hand, and two federations."""

import numpy as np


def softmax(z):
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def one_hot(y, classes):
    return np.eye(classes)[np.array(y)]


def cross_entropy(z, y):
    return -np.log(softmax(z)[np.arange(len(y)), y]).mean()


def kl(teacher, z, tau):
    """Batch mean of KL(teacher || student), both softened by tau; no tau squared."""
    q, p = softmax(teacher / tau), softmax(z / tau)
    return (q * (np.log(q) - np.log(p))).sum() / len(z)


def ntd(teacher, z, y, tau):
    """The same over the classes that are not the true one, times tau squared."""
    keep = one_hot(y, z.shape[1]) == 0
    rest = (len(z), z.shape[1] - 1)
    return tau**2 * kl(teacher[keep].reshape(rest), z[keep].reshape(rest), tau)


def contrastive(z, z_global, z_previous, tau):
    """MOON's term: minus the log of the share that the global features have of the two similarities."""

    def cosine(a, b):
        return (a * b).sum(1) / np.maximum(np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1), 1e-8)

    near, far = np.exp(cosine(z, z_global) / tau), np.exp(cosine(z, z_previous) / tau)
    return -np.log(near / (near + far)).mean()


# --------------------------------------------------------------------- logits = X W', as in the vector T7
def loss_gradient(W, X, y):
    return (softmax(X @ W.T) - one_hot(y, len(W))).T @ X / len(X)


def kl_gradient(W, teacher, X, tau):
    return (softmax(X @ W.T / tau) - softmax(X @ teacher.T / tau)).T @ X / (tau * len(X))


def fedsol_client(W0, X, y, rho, tau, lr, momentum, steps):
    """Fixed radius, no perturbation where the proximal gradient vanishes. Returns the weights and a log."""
    W, v, log = W0.copy(), np.zeros_like(W0), []
    for _ in range(steps):
        gp = kl_gradient(W, W0, X, tau)
        norm = np.linalg.norm(gp)
        e = rho * gp / (norm + 1e-12)
        gu = loss_gradient(W + e, X, y)
        cos = (gu * gp).sum() / (np.linalg.norm(gu) * norm) if norm > 0 else 0.0
        log.append({"kl": kl(X @ W0.T, X @ W.T, tau), "gp": norm, "eps": np.linalg.norm(e), "cos": cos})
        v = momentum * v + gu
        W = W - lr * v
    return W, log


def adaptive_eps(W, W0, X, rho, tau, axis):
    """Radius scaled by |W - W0|, which is normalised over the whole tensor (axis None) or over axis 0."""
    gap = np.abs(W - W0)
    norm = np.linalg.norm(gap) if axis is None else np.linalg.norm(gap, axis=axis, keepdims=True)
    gp = kl_gradient(W, W0, X, tau)
    return rho * gap / np.maximum(norm, 1e-12) * gp / (np.linalg.norm(gp) + 1e-12)


# ------------------------------------------------------------------------------------------------- federations
def fedgmt_gradient(W, teacher, X, y, weight, tau):
    """Cross entropy plus weight tau^2 KL(teacher || student)."""
    return loss_gradient(W, X, y) + weight * tau**2 * kl_gradient(W, teacher, X, tau)


def fedgmt(problem, s):
    """Rounds of FedGMT on logits = X W'. Returns per round the model, the moving average, duals, locals."""
    W, e = np.array(problem["W"], float), np.array(problem["W"], float)
    clients = [(np.array(c["X"], float), c["y"]) for c in problem["clients"]]
    h = [np.zeros_like(W) for _ in clients]
    own = [W.copy() for _ in clients]
    out = []
    for t, active in enumerate(problem["rounds"]):
        lr = problem["lr"] * problem["lr_decay"] ** t
        local = {}
        for i in active:
            X, y = clients[i]
            if s["variant"] == "v2":  # the average is kept by the client and moves when it is active
                own[i] = s["keep"] * own[i] + (1 - s["keep"]) * W
            teacher = own[i] if s["variant"] == "v2" else e
            w, v = W.copy(), np.zeros_like(W)
            for _ in range(problem["steps"]):
                g = fedgmt_gradient(w, teacher, X, y, s["weight"], s["tau"]) + h[i] / s["beta"]
                v = problem["momentum"] * v + g + problem["weight_decay"] * w
                w = w - lr * v
            local[i] = w
            h[i] = h[i] + w - W
        if s["variant"] == "paper":
            W = sum(local[i] + h[i] for i in active) / len(active)
        else:
            total = sum(len(clients[i][1]) for i in active)
            W = sum(len(clients[i][1]) / total * local[i] for i in active) + sum(h) / len(h)
        e = s["keep"] * e + (1 - s["keep"]) * W
        out.append({"w": W.copy(), "e": e.copy(), "h": [x.copy() for x in h], "local": local})
    return out


def man_gradient(W1, W2, X, y, weight):
    """Two layers without biases. Returns the loss, the mean squared activation and the two gradients."""
    a = np.maximum(X @ W1.T, 0)
    z = a @ W2.T
    act = (a**2).mean()
    dz = (softmax(z) - one_hot(y, len(W2))) / len(X)
    da = dz @ W2 + weight * a / a.size
    return cross_entropy(z, y) + weight / 2 * act, act, (da * (a > 0)).T @ X, dz.T @ a


def man(problem, weight):
    """FedAvg with the activation penalty, equal weights. Returns (W1, W2) after each round."""
    W1, W2 = np.array(problem["W1"], float), np.array(problem["W2"], float)
    out = []
    for active in problem["rounds"]:
        ends = []
        for i in active:
            X, y = np.array(problem["clients"][i]["X"], float), problem["clients"][i]["y"]
            a, b = W1.copy(), W2.copy()
            for _ in range(problem["steps"]):
                _, _, da, db = man_gradient(a, b, X, y, weight)
                norm = np.sqrt((da**2).sum() + (db**2).sum())
                scale = min(1.0, problem["clip"] / (norm + 1e-6))
                a = a - problem["lr"] * (scale * da + problem["weight_decay"] * a)
                b = b - problem["lr"] * (scale * db + problem["weight_decay"] * b)
            ends.append((a, b))
        W1 = sum(a for a, _ in ends) / len(ends)
        W2 = sum(b for _, b in ends) / len(ends)
        out.append((W1, W2))
    return out


def last_layer_hessian(W1, W2, X):
    """Hessian of the mean cross entropy in W2: its top eigenvalue, the per-sample ones and their mean."""
    a = np.maximum(X @ W1.T, 0)
    p = softmax(a @ W2.T)
    total, tops = 0, []
    for row, q in zip(a, p, strict=True):
        M = np.diag(q) - np.outer(q, q)
        tops.append(row @ row * np.linalg.eigvalsh(M)[-1])
        total = total + np.kron(M, np.outer(row, row)) / len(a)
    return np.linalg.eigvalsh(total)[-1], tops, float(np.mean(tops))


# -------------------------------------------------------------------------------------------------- streams
def sampled(seed, clients, count):
    np.random.seed(seed)
    return np.random.choice(clients, count, replace=False).tolist()


def bernoulli(seed, clients, ratio):
    while True:
        np.random.seed(seed)
        active = np.where(np.random.uniform(size=clients) <= ratio)[0]
        seed += 1
        if len(active):
            return active.tolist()


def lda(labels, clients, alpha, seed):
    """Dirichlet split with the size cap, on the legacy global stream."""
    np.random.seed(seed)
    labels = np.array(labels)
    pools = [np.where(labels == c)[0] for c in range(labels.max() + 1)]
    tries, smallest = 0, 0
    while smallest < 10:
        tries += 1
        parts = [[] for _ in range(clients)]
        for pool in pools:
            np.random.shuffle(pool)
            q = np.random.dirichlet(np.repeat(alpha, clients))
            q = np.array([a * (len(part) < len(labels) / clients) for a, part in zip(q, parts, strict=True)])
            q = q / q.sum()
            cuts = (np.cumsum(q) * len(pool)).astype(int)[:-1]
            parts = [part + piece.tolist() for part, piece in zip(parts, np.split(pool, cuts), strict=True)]
        smallest = min(len(part) for part in parts)
    for part in parts:
        np.random.shuffle(part)
    return parts, tries


def with_replacement(labels, clients, kind, parameter, seed):
    """Equal sizes; classes drawn from a client's prior; a class that runs out starts again."""
    np.random.seed(seed)
    labels = np.array(labels)
    classes = labels.max() + 1
    order = np.random.permutation(len(labels))
    labels = labels[order]
    if kind == "dirichlet":
        cumulative = np.cumsum(np.random.dirichlet([parameter] * classes, size=clients), axis=1)
    else:
        rows = np.array([[1] * parameter + [0] * (classes - parameter)] * clients)
        for row in rows:
            np.random.shuffle(row)
        cumulative = np.cumsum(rows, axis=1) * rows / parameter
    pools = [np.where(labels == c)[0] for c in range(classes)]
    left = [len(pool) for pool in pools]
    size = len(labels) // clients
    slots, ids = [size] * clients, [[0] * size for _ in range(clients)]
    while sum(slots):
        i = np.random.randint(clients)
        if slots[i] == 0:
            continue
        slots[i] -= 1
        while True:
            u = np.random.uniform()
            k = int(np.argmax(u <= cumulative[i]))
            if left[k] == 0:
                left[k] = len(pools[k])
                continue
            left[k] -= 1
            ids[i][slots[i]] = int(pools[k][left[k]])
            break
    return ids, labels
