"""Find out whether vmap can run a model and the user's own parts, and if not, where it fails and what to change."""

from __future__ import annotations

import warnings
from pathlib import Path
from traceback import walk_tb
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap

from steppe.core.algorithm import Algorithm
from steppe.core.client import Live, Reply, begin, by_transform, end, step
from steppe.core.errors import take_first_line
from steppe.core.inputs import Inputs, take
from steppe.core.losses import reduce_to_examples
from steppe.core.server import Server, broadcast
from steppe.core.stacking import stack
from steppe.core.task import Task
from steppe.data.federation import Federation
from steppe.executors.client_conv import ClientConvolutions

CURES = {
    ("item()", "data-dependent", "value of a Tensor", "control flow"): "use torch.where instead of branches on values, "
    "and a comparison with torch.arange instead of F.one_hot",
    ("dynamic shape",): "use torch.where instead of selecting by a mask",
    ("data pointer", "numpy"): "use PyTorch instead of NumPy",
    ("running_mean or running_var",): "build the layer with track_running_stats=False",
    ("in-place", "inplace", "broadcast shape"): "write to new tensors instead of in place",
    ("rnn", "gru", "lstm"): "vmap has no rule for this recurrent layer",
    ("batching rule", "not implemented", "not possible"): "replace the operation that it names",
    ("saved tensor hooks",): "without activation checkpointing it could be batched",
}


def find_batching_problem(algorithm: Algorithm, task: Task, federation: Federation) -> str:
    """Return what vmap cannot run, and why (some layers have no rule), or an empty string."""
    if task.recomputes:
        return "this model (it recomputes activations; without gradient checkpointing, they could be batched)"
    if task.pieces > 1:
        return "this model (accumulate splits its passes; chunk, the number of clients at once, saves memory too)"
    x = federation.plain(take(federation.data.train_inputs, slice(2)))
    y = federation.targets(federation.data.train_targets[:2])

    def loss(w: Tensor, inputs: Inputs, targets: Tensor) -> Tensor:
        return task.loss(task.forward(w, inputs, task.buffers).logits, {"y": targets})

    tries = {"this model": lambda: vmap(grad(loss), randomness="different")(*stack([(task.x0, x, y)] * 2))}
    if own := [p.name for p in algorithm.parts if not type(p).__module__.startswith("steppe.")]:
        tries["the part " + " or ".join(own)] = lambda: _play_two_clients(algorithm, task, {"x": x, "y": y})
    for what, attempt in tries.items():
        try:
            with warnings.catch_warnings(), ClientConvolutions(()):  # as in training, but without compiling kernels
                warnings.simplefilter("ignore")
                attempt()
        except Exception as error:  # a user's model or part may raise anything
            return f"{what} ({_explain(error)})"
    return f"this model exactly ({why})" if (why := _find_dependence(task, federation)) else ""


def _find_dependence(task: Task, federation: Federation) -> str:
    """Return why a sample's loss or a buffer would depend on the padding of its batch; empty if they would not.

    A model that centres its activations over the batch, for instance, is found by giving the first sample another
    neighbour.
    """
    if any(getattr(m, "scale_grad_by_freq", False) for m in task.learner.modules()):
        return "scale_grad_by_freq would count the tokens of padding; build the embedding without it"
    data, seen, device = federation.data, [], task.x0.device
    for rows in ([0, 1], [0, 0]) if len(data.train_targets) > 1 else ():
        x, y = federation.plain(take(data.train_inputs, rows)), federation.targets(data.train_targets[rows])
        with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(0)  # the same dropout
            out = task.forward(task.x0, x, task.buffers)
            each = reduce_to_examples(task.loss_each(out.logits, y))[0]
        changed = {f"buffer {name}": value for name, value in out.buffers.items()}
        seen.append({"outputs": out.logits[:1], "loss": each[:1], **changed})
    near = 1e-3 if task.mixed is None else 0.1  # rounding may depend on the neighbour
    for what in seen[0] if seen else ():
        if not torch.allclose(seen[0][what], seen[1][what], near, near, equal_nan=True):
            return f"its {what} would depend on the padding of batches"
    return ""


def _play_two_clients(algorithm: Algorithm, task: Task, batch: dict[str, Any]) -> None:
    """Run a round of two clients with one step each under vmap, as `Batched` does."""
    one, server = task.x0.new_ones(()), Server(task.x0, algorithm.server_state(task.x0), task.buffers)
    states = stack([algorithm.client_state(task.x0)] * 2)
    sent = broadcast(algorithm, task.layout, server, one, one, states)[1]

    def play(live: Live, several: dict[str, Any], steps: Tensor) -> Reply:
        live = step(algorithm, task, sent, live, (several,) * algorithm.batches_per_step, one, steps, by_transform)
        return end(algorithm, task, sent, live, steps)

    with torch.no_grad():
        steps = one.expand(2)
        live = vmap(lambda state, n: begin(algorithm, task, sent, state, n), out_dims=0)(states, steps)
        vmap(play, randomness="different")(live, stack([batch] * 2), steps)


def _explain(error: Exception) -> str:
    """Return where the user's code fails under vmap, why, and what to change, where that is known."""
    why = (take_first_line(error) or type(error).__name__).partition(". ")[0]
    cure = next((c for words, c in CURES.items() if any(w.lower() in why.lower() for w in words)), None)
    why += f": {cure}" if cure else ""
    ours = (Path(torch.__file__).parent, Path(__file__).parents[1])
    theirs = [(file, line) for frame, line in walk_tb(error.__traceback__)
              if not any((file := Path(frame.f_code.co_filename)).is_relative_to(one) for one in ours)]  # fmt: skip
    if not theirs:
        return why
    file, line = theirs[-1]
    return f"{file.name}, line {line}: {why}"
